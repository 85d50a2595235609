#!/bin/sh
# Everything here that needs a GPU, in ten minutes: tests, equal texts, rounds against the memory's bandwidth, speed at the
# cost of 7B, several streams, where drafts pay, and the other way round (target on the CPU, draft on the GPU).
#
#   docs/gpu.sh [DIRECTORY]      report.md and each step's output go to DIRECTORY (build/gpu)
#   DEVICE=cpu docs/gpu.sh       rehearse with small models, where there is no GPU: its figures mean nothing
#
# A step that fails or takes too long is reported, and the next one runs. The exit code is the number of those. A
# rehearsal gives each step five times as long. The first start of a fresh machine compiles the CPU's layers: step prove.
set -u
cd "$(dirname "$0")/.."
out=${1:-build/gpu} device=${DEVICE:-cuda}
rm -rf "$out"
mkdir -p "$out"
report=$out/report.md
failed=0

step() { # NAME SECONDS COMMAND…
    name=$1 most=$(($2 * slack))
    shift 2
    began=$(date +%s)
    echo "$name …"
    timeout -k 10 "$most" "$@" > "$out/$name.txt" 2>&1
    code=$?
    took=$(($(date +%s) - began))
    if [ $code = 0 ]; then said=done; else said="**failed** with $code" failed=$((failed + 1)); fi
    {
        printf '\n## %s\n\n`%s`: %s after %s s\n\n```\n' "$name" "$*" "$said" "$took"
        tail -n 40 "$out/$name.txt" | tr '\r' '\n' | tail -n 40
        printf '```\n'
    } >> "$report"
    echo "  $said after $took s"
}

duo() { # NAME SECONDS COMMAND OPTIONS…
    name=$1 most=$2
    shift 2
    step "$name" "$most" python -m duoactor "$@"
}

if [ "$device" = cpu ]; then
    shape='--layers 8 --hidden 384' costly="$out/small" streams=1,2 many=1,2 tokens=8 minutes=0.1 slack=5
else
    shape='--layers 32 --hidden 4096 --intermediate 11008 --dtype bfloat16'
    costly="$out/7b" streams=1,8,32 many=1,4,16,32 tokens=96 minutes=0.7 slack=1
fi
ours=sps,pld,pearl,duodecoding-lockstep,duodecoding,tree,auto
echo "# What a GPU was tried with" > "$report"

# shellcheck disable=SC2086  # shape is several words
{
    step machine 15 sh -c "nvidia-smi; python -c 'import torch; print(torch.__version__, torch.cuda.is_available())'"
    step tests 75 python -m pytest -q -rs -p no:cacheprovider -m cuda tests/engines/test_graphs_cuda.py \
        tests/engines/test_noise.py
    step rounds 60 python -m tests.engines.time_rounds --device "$device" $([ "$device" = cpu ] && echo --small)
    duo inflate 50 inflate bundled "$costly" $shape
    duo prove 130 prove --device "$device" --minutes "$minutes"
    set -- --target "$costly" --device "$device" --max-tokens "$tokens" --repeats 1 --quiet --limit 1
    duo greedy 75 bench "$@" --methods "$ours" --tasks chat,code,translation --out "$out/greedy"
    duo sampled 35 bench "$@" --methods auto,pld --temperature 1 --tasks chat,code,translation --out "$out/sampled"
    duo streams 50 bench "$@" --streams "$many" --out "$out/streams"
    duo map 110 bench "$@" --map --streams "$streams" --tasks chat,code --out "$out/map"
    set -- --target bundled --max-tokens "$tokens" --repeats 1 --quiet --limit 1
    duo reverse 45 bench "$@" --device cpu --draft-device "$device" --methods tree,auto --tasks chat,code --out "$out/reverse"
}
echo "$failed steps failed; read $report"
exit $failed
