#!/bin/sh
# Makes the virtual environment, or says in one sentence why it cannot be made.
#
# usage: tools/venv.sh PYTHON DIRECTORY
set -eu

python=$1
directory=$2

if ! command -v "$python" >/dev/null; then
    echo "Holdfast needs Python 3.11 or newer and found no '$python'; name one with: make PYTHON=/path/to/python3" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Holdfast needs Python 3.11 or newer and '$python' is $("$python" -V 2>&1); name a newer one with: make PYTHON=/path/to/python3" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "'$python' cannot make virtual environments because its venv module is incomplete; on Debian or Ubuntu run: apt-get install python3-venv" >&2
    exit 1
fi
if [ ! -x "$directory/bin/pip" ]; then
    rm -rf "$directory"
    "$python" -m venv "$directory"
fi
