# Sourced by models/demo.sh and tests/run.sh: an up-to-date .venv with this project and the extras in $1.
# Needs Python 3.11 or newer; PYTHON names another interpreter.

ensure_venv() {
    local extras=$1 python=${PYTHON:-python3} stamp
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "Python 3.11 or newer is needed; set PYTHON to one (found: $("$python" --version))" >&2
        return 2
    }
    stamp=$(cat pyproject.toml constraints.txt | cksum)
    if [ "$(cat ".venv/$extras.stamp" 2>/dev/null)" != "$stamp" ]; then
        echo "installing into .venv (a few minutes the first time)" >&2
        [ -x .venv/bin/python ] || "$python" -m venv .venv
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$extras]"
        echo "$stamp" >".venv/$extras.stamp"
    fi
}
