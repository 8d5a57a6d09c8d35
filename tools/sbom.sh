#!/bin/sh
# Writes DIRECTORY/NAME.cdx.json (CycloneDX) for each requirements/NAME.lock: every package with its version and hashes.
# It reads nothing but this project's files, and the same files give the same bytes.
#
# usage: tools/sbom.sh PATH_TO_CYCLONEDX_PY DIRECTORY LOCK...
set -eu

cyclonedx=$1
directory=$2
shift 2
mkdir -p "$directory"

# The tool wants the version in pyproject.toml, and ours is in the source.
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/holdfast/_version.py)
project=$directory/pyproject.toml
trap 'rm -f "$project"' EXIT
sed "s/^dynamic = .*/version = \"$version\"/" pyproject.toml >"$project"

for lock in "$@"; do
    # It warns that a lock does not say which package needs which.
    PYTHONWARNINGS=ignore "$cyclonedx" requirements "$lock" --pyproject "$project" --mc-type library \
        --output-reproducible --output-format JSON --output-file "$directory/$(basename "$lock" .lock).cdx.json"
done
