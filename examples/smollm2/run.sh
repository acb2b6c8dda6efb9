#!/usr/bin/env bash
# From nothing to a draft of SmolLM2, on one GPU: prompts, answers, states, training, export.
#   examples/smollm2/run.sh MODEL OUT [QUESTIONS.jsonl...]
# QUESTIONS are what the draft will be judged by: no prompt for training shares eight words with them.
# Each step that was finished is left as it is, so running it again goes on.
# COUNT (45000) messages are begun; ENGINE_ARGS ("--engine-arg NAME=VALUE ...") go to
# vLLM. REPLICAS (1) engines write, answer and extract side by side: so small a model leaves a GPU idle. More
# than one need ENGINE_ARGS and PROMPTS_ENGINE (JSON) with gpu_memory_utilization and kv_cache_memory_bytes.
set -euo pipefail
model=$1 out=$2; shift 2
here=$(dirname "$0"); mkdir -p "$out"
questions=("$@") count=${COUNT:-45000} replicas=${REPLICAS:-1}
read -ra engine <<<"${ENGINE_ARGS:-}"
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
step() { echo "== $1 (after $SECONDS s)"; }

side_by_side() {
  local number running=()
  for number in $(seq "$replicas"); do "$1" "$number" & running+=($!); done
  for number in "${running[@]}"; do wait "$number"; done
}
ask() {
  [ -e "$out/prompts-$1.jsonl" ] || {
    python3 "$here/prompts.py" --model "$model" --out "$out/prompts-$1.part" --seed "$1" \
      --count $((count / replicas)) --engine-args "${PROMPTS_ENGINE:-{\}}" --exclude "${questions[@]}" &&
      mv "$out/prompts-$1.part" "$out/prompts-$1.jsonl"
  }
}
answer() {
  eagle3data regenerate "$out/prompts-$1.jsonl" --model "$model" --out "$out/answers-$1.jsonl" \
    --max-new-tokens 256 --batch-size 8192 "${engine[@]}"
}
extract() { eagle3data extract "$out/train.arrow" --model "$model" --out "$out/states" "${engine[@]}"; }

step prompts; side_by_side ask
step regenerate; side_by_side answer
step prepare
answers=(); for number in $(seq "$replicas"); do answers+=("$out/answers-$number.jsonl"); done
[ -e "$out/train.arrow" ] || eagle3data prepare "${answers[@]}" --model "$model" \
  --out "$out/train.arrow" --eval-fraction 0.02 --workers "$(nproc)"
step extract; side_by_side extract
step validate
eagle3data validate "$out/states" --level quick
step train
eagle3data train "$out/states" --model "$model" --out "$out/run" --config "$here/train.yaml"
step export
[ -e "$out/draft" ] || eagle3data export "$out/run" --format vllm --out "$out/draft"
step done
