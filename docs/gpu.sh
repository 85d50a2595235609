#!/bin/sh
# Everything here that needs a GPU, in ten minutes, most telling first: rounds of every format against the memory's
# bandwidth, every family's logits, tests, speed at the cost of 7B, many streams, llama.cpp on the same file, temperature 1,
# equal texts, where drafts pay, and the other way round (target on the CPU, draft on the GPU).
#
#   docs/gpu.sh [DIRECTORY]      report.md and each step's output go to DIRECTORY (build/gpu)
#   docs/gpu.sh --compile [90…]  no GPU: what each kernel needs of each capability, from its machine code
#   DEVICE=cpu docs/gpu.sh       rehearse with small models, where there is no GPU: its figures mean nothing
#   MINUTES=5 docs/gpu.sh        another limit for all together (10; a rehearsal has 30, for machines that others use)
#   STEPS='tests map' docs/gpu.sh    these steps alone
#   LLAMA=llama.cpp GGUF=7b.gguf STEPS='peer-built peer file' docs/gpu.sh DIRECTORY    builds llama.cpp's sources there for
#                                the GPU, which takes minutes of all cores, and runs both on the file
#
# Limits of all steps are ten minutes together, those of llama.cpp's three apart. Kernels of gemlite and exllamav3 are not
# compared: gemlite 0.6 has no wheel, and exllamav3 1.6.5's holds sources alone, which nvcc compiles at the first import,
# for longer than a step has.
#
# A step that fails or takes too long is reported, and the next one runs; one for which no time is left is not begun. The
# report begins with what became of each, and its seconds. The exit code is the number of steps that were not done.
set -u
cd "$(dirname "$0")/.."
if [ "${1:-}" = --compile ]; then
    shift
    exec python -m tests.engines.compiled_kernels "$@"
fi
out=${1:-build/gpu} device=${DEVICE:-cuda} wanted=${STEPS:-}
rm -rf "$out"
mkdir -p "$out"
missed=0
start=$(date +%s)

told() { # NAME WHAT SECONDS: a row of the report's table
    printf '| %s | %s | %s |\n' "$1" "$2" "$3" >> "$out/table.txt"
    echo "$1: $2, $3 s"
}

step() { # NAME SECONDS COMMAND…
    name=$1 most=$(($2 * slack)) left=$((start + 60 * minutes - $(date +%s)))
    shift 2
    case " ${wanted:-$name} " in *" $name "*) ;; *) return 0 ;; esac
    if [ "$left" -lt 15 ]; then
        told "$name" "**not begun**: no time was left" 0
        missed=$((missed + 1))
        return 0
    fi
    [ "$most" -lt "$left" ] || most=$left
    began=$(date +%s)
    timeout -k 10 "$most" "$@" > "$out/$name.txt" 2>&1
    code=$?
    took=$(($(date +%s) - began))
    case $code in
    0) told "$name" "done" $took ;;
    124 | 137) told "$name" "**not done** within $most s" $took ;;
    *) told "$name" "**failed** with $code" $took ;;
    esac
    [ $code = 0 ] || missed=$((missed + 1))
    {
        printf '\n## %s\n\n`%s`\n\n```\n' "$name" "$*"
        tail -n 40 "$out/$name.txt" | tr '\r' '\n' | tail -n 40
        printf '```\n'
    } >> "$out/steps.txt"
}

bench() { # NAME SECONDS OPTIONS…
    name=$1 most=$2
    shift 2
    step "$name" "$most" python -m duoactor bench --max-tokens "$tokens" --repeats 1 --quiet --limit 1 \
        --out "$out/$name" "$@"
}

end() {
    took=$(($(date +%s) - start))
    {
        printf '# What a GPU was tried with\n\n%s steps were not done; %s s together.\n\n' "$missed" "$took"
        printf '| step | | s |\n|---|---|---|\n'
        cat "$out/table.txt" "$out/steps.txt" 2> /dev/null
    } > "$out/report.md"
    echo "$missed steps were not done, $took s together; read $out/report.md"
    trap - EXIT
    exit "$missed"
}
trap end EXIT
trap 'exit 130' INT TERM

if [ "$device" = cpu ]; then
    shape='--layers 8 --hidden 384' costly="$out/small" streams=1 many=1,2 tokens=8 prove=0.5 slack=5
    minutes=${MINUTES:-30} tasks=chat few=chat rounds=--small
else
    shape='--layers 32 --hidden 4096 --intermediate 11008 --dtype bfloat16'
    costly="$out/7b" streams=1,8,32 many=1,4,16,32 tokens=96 prove=0.4 slack=1
    minutes=${MINUTES:-10} tasks=chat,code,translation few=chat,code rounds=
fi
ours=sps,pld,pearl,duodecoding-lockstep,duodecoding,tree,auto

# shellcheck disable=SC2086  # shape and rounds are words, or none
{
    step machine 15 sh -c "nvidia-smi; python -c 'import torch; print(torch.__version__, torch.cuda.is_available())'"
    # a fresh machine's first start compiles the draft's layers for its CPU, which every step below needs
    step compile 45 python -c 'import actors.engines.decoder.cpu.compiler as compiler; print(compiler.compiled_kernels())'
    step inflate 35 python -m duoactor inflate bundled "$costly" $shape
    step formats 70 python -m tests.engines.time_rounds --device "$device" $rounds --formats
    for kind in Q4_K Q8_0; do
        step "rounds-$kind" 35 python -m tests.engines.time_rounds --device "$device" $rounds --blocks "$kind"
    done
    step rounds 25 python -m tests.engines.time_rounds --device "$device" $rounds
    step families 60 python -m tests.engines.families_on_device --device "$device"
    step tests 40 python -m pytest -q -rs -p no:cacheprovider -m cuda tests/engines/test_graphs_cuda.py \
        tests/engines/test_noise.py
    bench greedy 55 --target "$costly" --device "$device" --methods "$ours" --tasks "$tasks"
    bench streams 45 --target "$costly" --device "$device" --streams "$many"
    if [ -n "${LLAMA:-}" ] && [ -n "${GGUF:-}" ]; then
        # FlashAttention's templates are what takes longest to compile, and this context is short
        step peer-built 400 sh -c 'cmake -S "$0" -B "$1" -DGGML_CUDA=ON -DGGML_CUDA_FA=OFF -DGGML_CUDA_NCCL=OFF \
            -DCMAKE_CUDA_ARCHITECTURES="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)" \
            -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF \
            -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
            && cmake --build "$1" -j "$(nproc)" --target llama-batched-bench' "$LLAMA" "$out/peer"
        step peer 40 "$out/peer/bin/llama-batched-bench" -m "$GGUF" -ngl 99 -c 16384 -npp 128 -ntg 64 -npl 1,4,16
        bench file 60 --target "$GGUF" --device "$device" --streams 1,4,16
    fi
    bench sampled 25 --target "$costly" --device "$device" --methods auto,pld --temperature 1 --tasks "$tasks"
    step prove 45 python -m duoactor prove --device "$device" --minutes "$prove"
    step map 50 python -m tools.speedups --max-tokens "$tokens" --repeats 1 --quiet --limit 1 --out "$out/map" \
        --target "$costly" --device "$device" --streams "$streams" --tasks "$few"
    bench reverse 20 --target bundled --device cpu --draft-device "$device" --methods tree,auto --tasks "$few"
}
