#!/usr/bin/env bash
# A drafter on another host than the verifier's: encrypted, and every peer is on a list.
#
# Both are on this host here, in a directory each, so that it runs anywhere. Between two hosts, put the GPU box's name in
# place of 127.0.0.1 where the drafter connects, and copy laptop.key and verifier.pub to the laptop.
#
# Run it:  bash examples/drafter_elsewhere.sh
set -euo pipefail
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
mkdir "$work/gpu-box" "$work/laptop"

# On the GPU box. Whoever has a .pub file in the directory may connect, for what the file says.
cd "$work/gpu-box"
duoactor keys verifier --directory keys
duoactor keys laptop --role drafter --role client --directory keys
mv keys/laptop.key ../laptop/  # a secret key stays on the host that uses it
cp keys/verifier.pub ../laptop/
duoactor up bundled --bind tcp://127.0.0.1:7601 --key keys/verifier.key --allow keys --drafters 0 &

# On the laptop. The drafter waits until there is a verifier.
cd "$work/laptop"
duoactor drafter --connect tcp://127.0.0.1:7601 --key laptop.key --server-key verifier.pub --actor-id laptop &

# Who has a client's key may ask, too; say once where, and with which keys.
export DUOACTOR_CONNECT=tcp://127.0.0.1:7601 DUOACTOR_KEY=laptop.key DUOACTOR_SERVER_KEY=verifier.pub
until duoactor drafters 2>/dev/null | grep laptop; do sleep 0.5; done  # models are loading
duoactor generate "def factorial(n):" --max-tokens 40 --method tree
