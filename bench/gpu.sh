#!/usr/bin/env bash
# Everything that is to be measured on a GPU, in one call of under ten minutes; one file, results.json, in --out DIR, $OUT, or bench/results/gpu.
#
#   bench/gpu.sh                    all parts, most important first; exit status 0 only if every gate was green; the last line says how it went
#   bench/gpu.sh --dry-run          the same script on the CPU with tiny sizes: measures nothing
#   bench/gpu.sh --only links,first --seconds 200
#   bench/gpu.sh --only first --cases "7B 512"
#   bench/gpu.sh --resume [FILE]    go on where an earlier call ended: what was right stays, all else is done again
#   bench/gpu.sh --wheels-needed    what a machine without a network may lack, for Python 3.12, and the command that fetches it
#   bench/gpu.sh --wheels DIR       take what is missing from the wheels in DIR (default: bench/wheels, where there is one)
#   bench/gpu.sh --commit ID        what the results call the commit, where the tree that runs is no git checkout
#   bench/gpu.sh --model FILE       SmolLM2's GGUF file
#
# SmolLM2's file may travel in parts, which are joined and checked: mkdir -p bench/weights &&
# split -b 48M .cache/SmolLM2-135M-Instruct.Q4_1.gguf bench/weights/SmolLM2-135M-Instruct.Q4_1.gguf.
#
# PYTHON names the interpreter. Without it: python3 where it has torch, else the checkout's .venv, else python3, which then says what it lacks.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

has_torch() { "$1" -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec("torch") is None)' 2>/dev/null; }

python=${PYTHON:-}
if [[ -z $python ]]; then
    for python in python3 .venv/bin/python python3; do has_torch "$python" && break; done
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "gpu.sh: $python is no Python of version 3.11 or newer; name one: PYTHON=/path/to/python bench/gpu.sh" >&2
    exit 2
fi

wheels=bench/wheels
words=()
while (($#)); do
    case $1 in
        --wheels-needed) exec "$python" -m bench.gpu.wheels needed ;;
        --wheels) wheels=${2:?--wheels needs a folder}; shift 2 ;;
        --commit) export EINPAGE_COMMIT=${2:?--commit needs a name}; shift 2 ;;
        *) words+=("$1"); shift ;;
    esac
done

# Not into the interpreter's own folders: it may be shared, or one that nothing can be written to.
if [[ -d $wheels ]]; then
    if site=$(mktemp -d); then
        trap 'rm -rf "$site"' EXIT
        "$python" -m bench.gpu.wheels unpack "$wheels" "$site"
        export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$site"
    fi
fi

export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
"$python" -m bench.gpu "${words[@]+"${words[@]}"}"
