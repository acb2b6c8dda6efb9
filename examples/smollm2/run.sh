#!/usr/bin/env bash
# From nothing to a draft of SmolLM2, on one GPU: prompts, answers, states, training, export.
#   examples/smollm2/run.sh MODEL OUT [QUESTIONS.jsonl...]
# QUESTIONS are what the draft will be judged by: no prompt for training shares eight words with them.
# COUNT (20000), EPOCHS (4) and ENGINE_ARGS ("--engine-arg NAME=VALUE ...") may be set.
set -euo pipefail
model=$1 out=$2; shift 2
here=$(dirname "$0"); mkdir -p "$out"
count=${COUNT:-20000}
read -ra engine <<<"${ENGINE_ARGS:-}"
step() { echo "== $1 (after $SECONDS s)"; }

step prompts
[ -e "$out/prompts.jsonl" ] || python3 "$here/prompts.py" --model "$model" --out "$out/prompts.part" \
  --count "$count" --engine-args "${PROMPTS_ENGINE:-{\}}" --exclude "$@"
[ -e "$out/prompts.jsonl" ] || mv "$out/prompts.part" "$out/prompts.jsonl"
step regenerate
eagle3data regenerate "$out/prompts.jsonl" --model "$model" --out "$out/conversations.jsonl" \
  --max-new-tokens 512 --batch-size 8192 "${engine[@]}"
step prepare
eagle3data prepare "$out/conversations.jsonl" --model "$model" --out "$out/train.arrow" \
  --eval-fraction 0.02
step extract
eagle3data extract "$out/train.arrow" --model "$model" --out "$out/states" "${engine[@]}"
step validate
eagle3data validate "$out/states" --level quick
step train
eagle3data train "$out/states" --model "$model" --out "$out/run" --config "$here/train.yaml" \
  train.epochs="${EPOCHS:-4}"
step export
eagle3data export "$out/run" --format vllm --out "$out/draft"
step done
