#!/bin/sh
# Measures a section of docs/benchmarks anew, and puts its report there:
#
#   docs/benchmarks.sh bundled            one of: bundled inflated larger larger-sampled larger-int8 map modes
#                                         second-machine chaos sampled sweep load load-inflated load-smollm2
#                                         load-smollm2-sampled spec-bench humaneval, and on a machine with a GPU gpu
#                                         gpu-sampled gpu-load
#   LIMIT=2 docs/benchmarks.sh bundled    two prompts of each task; without LIMIT a section takes one to five minutes
#                                         on two cores (load: more), and the sections bundled and inflated have every
#                                         prompt of the built-in suite
#
# Results lie in build/benchmarks (RESULTS=DIR: elsewhere). Sections spec-bench and humaneval need the published files:
# SPEC_BENCH=question.jsonl, HUMANEVAL=HumanEval.jsonl.
set -eu
cd "$(dirname "$0")/.."
results=${RESULTS:-build/benchmarks}
mkdir -p "$results"

bench() { # NAME DEFAULT_LIMIT OPTIONS…
    name=$1 limit=${LIMIT:-$2}
    shift 2
    rm -rf "$results/$name"
    duoactor bench "$@" --limit "$limit" --out "$results/$name"
    rm -rf "docs/benchmarks/$name"
    mkdir -p "docs/benchmarks/$name"
    cp "$results/$name/report.md" "docs/benchmarks/$name/"
    index
}

put() { # NAME PAGE: standard input in place of what stands between the page's marks of that name
    awk -v name="$1" '
        FNR == NR { text = text $0 "\n"; next }
        $0 == "<!-- " name " ends -->" { skip = 0 }
        !skip
        $0 == "<!-- " name " begins -->" { printf "%s", text; skip = 1 }
    ' - "$2" > "$results/page.md"
    cp "$results/page.md" "$2"
}

index() { # every report's command and its short answers, on one page
    {
        printf '# Measured\n\nWritten by `docs/benchmarks.sh`. Each report has the tables and the machine.\n'
        for report in docs/benchmarks/*/report.md; do
            name=$(basename "$(dirname "$report")")
            printf '\n## [%s](%s/report.md)\n\n' "$name" "$name"
            grep -E '^- (command|suite|models|sampling|repeats|\*\*inflated\*\*|\*\*Incomplete\*\*)' "$report"
            awk '/^## /{inside = ($0 == "## In short")} inside && /^- /' "$report"
        done
    } > docs/benchmarks/README.md
}

inflated_target() { # the bundled target's function at the cost of 91M parameters
    [ -d "$results/big" ] || duoactor inflate bundled "$results/big" --layers 12 --hidden 768
}

larger_target() { # the same at the cost of some 0.5B
    [ -d "$results/larger" ] || duoactor inflate bundled "$results/larger" --layers 24 --hidden 1280
}

costly_draft() { # NAME OPTIONS…: the bundled draft's function at the cost of a larger one
    [ -d "$results/draft-$1" ] || duoactor inflate duoactor/pair/draft "$results/draft-$1" "$2" "$3" "$4" "$5" >&2
}

second_machine() { # DRAFT OPTIONS…
    echo "draft: $(basename "$1")"
    python -m tests.system.second_machine --target "$results/larger" --draft "$@"
}

gpu_target() { # at the cost of a 7B target: 13 GB
    [ -d "$results/gpu-target" ] ||
        duoactor inflate bundled "$results/gpu-target" --layers 32 --hidden 4096 --intermediate 11008 --dtype bfloat16
}

ours=sps,pld,pearl,duodecoding-lockstep,duodecoding,tree,auto
duo=duodecoding-1,duodecoding-2,duodecoding-3,duodecoding-lockstep,duodecoding
modes=sps,pearl,duodecoding-lockstep,duodecoding,tree,auto
gammas=duodecoding@3,duodecoding@5,duodecoding@7,duodecoding@9
for section in "$@"; do
    case $section in
    bundled) bench bundled 0 --repeats 1 --max-tokens 80 --methods "$ours" ;;
    inflated)
        inflated_target
        bench inflated 0 --target "$results/big" --repeats 1 --max-tokens 80 --methods "$ours"
        ;;
    larger | larger-sampled | larger-int8)
        larger_target
        set -- --target "$results/larger" --repeats 1 --max-tokens 80
        case $section in
        larger) bench larger 2 "$@" --methods "$ours" ;;
        larger-sampled) bench larger-sampled 2 "$@" --methods "$ours" --temperature 1 ;;
        larger-int8) bench larger-int8 2 "$@" --methods "$ours" --dtype int8 ;;
        esac
        ;;
    map)
        larger_target
        rm -rf "$results/map"
        python -m tools.speedups --target "$results/larger" --tasks chat,code,math_reasoning --limit 1 \
            --max-tokens "${TOKENS:-48}" --repeats "${REPEATS:-2}" --out "$results/map"
        mkdir -p docs/benchmarks/map
        cp "$results/map/map.json" docs/benchmarks/map/
        put map docs/benchmarks.md < "$results/map/report.md"
        ;;
    modes) # SSD's hit rate beside the paper's modes and PEARL; counts need no quiet machine
        larger_target
        bench modes 1 --target "$results/larger" --repeats 1 --max-tokens 80 --methods "$modes"
        grep '^|' "$results/modes/report.md" | sed 's/^| method |/\n&/' | put modes docs/two-devices.md
        ;;
    second-machine) # some eleven minutes
        larger_target
        costly_draft 48m --layers 8 --hidden 640
        costly_draft 152m --layers 12 --hidden 960
        {
            printf '```text\n'
            second_machine bundled --delays 0.2 --losses 0.001 --answers 0
            second_machine "$results/draft-48m" --delays 0.2 --losses 0.001 --answers 0
            second_machine "$results/draft-152m" --delays 0.2,5 --losses 0,0.001 --answers "${ANSWERS:-4}"
            printf '```\n'
        } | tee "$results/second-machine.txt"
        put second-machine docs/two-devices.md < "$results/second-machine.txt"
        ;;
    chaos) # MINUTES=10, and two for the first answers; a lost answer or another text stands in the table
        python -m tests.system.chaos --minutes "${MINUTES:-10}" --table > "$results/chaos.txt" || [ -s "$results/chaos.txt" ]
        { date '+Measured on %-d %B %Y.' && cat "$results/chaos.txt"; } | put chaos docs/benchmarks.md
        ;;
    sampled)
        bench sampled 4 --temperature 1 --repeats 2 --max-tokens 80 --methods "$ours"
        ;;
    sweep)
        inflated_target
        bench sweep 2 --target "$results/big" --repeats 2 --max-tokens 80 --methods "$duo,$gammas"
        ;;
    # Two repeats are too few, since answers are short: 16 streams were 0.83 of vanilla with two and 0.99 with five.
    load) bench load 2 --streams 1,2,4,8,16,32,64 --repeats 5 --max-tokens 80 ;;
    load-smollm2) bench load-smollm2 1 --target smollm2 --streams 1,2,4,8,16,32,64 --repeats 5 --max-tokens 48 ;;
    load-smollm2-sampled)
        bench load-smollm2-sampled 1 --target smollm2 --streams 1,2,4,8,16,32 --repeats 5 --max-tokens 48 --temperature 1
        ;;
    load-inflated)
        inflated_target
        bench load-inflated 2 --target "$results/big" --streams 1,2,4,8,16,32,64 --repeats 1 --max-tokens 80
        ;;
    spec-bench)
        bench spec-bench 4 --suite "${SPEC_BENCH:?give SPEC_BENCH=question.jsonl}" --repeats 1 --max-tokens 80 \
            --methods "$ours,transformers,transformers-assisted,transformers-prompt-lookup"
        ;;
    humaneval)
        bench humaneval 30 --suite "${HUMANEVAL:?give HUMANEVAL=HumanEval.jsonl}" --repeats 1 --max-tokens 80 \
            --methods "$ours,transformers,transformers-assisted,transformers-prompt-lookup"
        ;;
    gpu | gpu-sampled | gpu-load)
        gpu_target
        set -- --target "$results/gpu-target" --device cuda --repeats 1 --max-tokens 128
        case $section in
        gpu) bench gpu 2 "$@" --methods "$ours" ;;
        gpu-sampled) bench gpu-sampled 2 "$@" --methods auto,duodecoding,pld --temperature 1 ;;
        gpu-load) bench gpu-load 2 "$@" --streams 1,4,16,32 ;;
        esac
        ;;
    *)
        echo "there is no section $section: see the head of $0" >&2
        exit 2
        ;;
    esac
done
