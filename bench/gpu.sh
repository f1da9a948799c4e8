#!/usr/bin/env bash
# Everything that is to be measured on a GPU, in one call of under ten minutes; results as JSON in --out DIR, $OUT, or bench/results/gpu.
#
#   bench/gpu.sh                    all parts, most important first; exit status 0 only if every gate was green
#   bench/gpu.sh --dry-run          the same script on the CPU with tiny sizes, under three minutes: measures nothing
#   bench/gpu.sh --parts links,kernels --seconds 200
#   bench/gpu.sh --wheels DIR       install the wheels in DIR (default: bench/wheels, where there is one) for this run, without a network
#   bench/gpu.sh --commit ID        what the results call the commit, where the tree that runs is no git checkout
#   bench/gpu.sh --model FILE       SmolLM2's GGUF file
#
# PYTHON names the interpreter, which must have torch and triton; without it, the checkout's .venv where there is one, else python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
[[ -z ${PYTHON:-} && -x .venv/bin/python ]] && python=.venv/bin/python
wheels=bench/wheels
words=()
while (($#)); do
    case $1 in
        --wheels) wheels=${2:?--wheels needs a folder}; shift 2 ;;
        --commit) export EINPAGE_COMMIT=${2:?--commit needs a name}; shift 2 ;;
        *) words+=("$1"); shift ;;
    esac
done

# Not into a virtual environment: the interpreter with torch is often in one itself, whose packages a second one would not see.
if [[ -d $wheels ]]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$wheels"/*.whl
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi

"$python" - <<'PYTHON'
import sys
from importlib.util import find_spec

needed = {
    "torch": "everything", "triton": "everything", "numpy": "everything", "yaml": "everything", "jsonschema": "kernels, smollm2, models, peers",
    "rich": "everything", "safetensors": "smollm2, models, peers", "gguf": "smollm2, models, peers", "tokenizers": "smollm2, models, peers",
    "pytest": "tests", "hypothesis": "tests", "pytest_timeout": "tests", "transformers": "peers", "accelerate": "a peer", "deepspeed": "a peer",
}
missing = {name: use for name, use in needed.items() if find_spec(name) is None}
for name, use in missing.items():
    print(f"missing: {name} (wanted by: {use}); put its wheel into bench/wheels or name a folder with --wheels", flush=True)
sys.exit(any(use == "everything" for use in missing.values()))
PYTHON

export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
"$python" -m bench.gpu "${words[@]+"${words[@]}"}"
