#!/usr/bin/env bash
# Looks at REPORT.html in a real browser: tests/browser/run.sh CONVERTKIT FOLDER. What cannot be installed is skipped,
# and the line that says so begins with SKIPPED.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
convertkit=$1
out=$2

skip() {
    echo "SKIPPED browser checks: $1"
    exit 0
}

if ! command -v chromium >/dev/null; then
    { [ "$(id -u)" = 0 ] && apt-get install -y -q chromium >/dev/null 2>&1; } || skip "no chromium"
fi
command -v npm >/dev/null || skip "no npm"
mkdir -p "$out/node"
cp "$here/package.json" "$here/check.mjs" "$out/node/"
npm install --prefix "$out/node" --no-audit --no-fund --silent >/dev/null 2>&1 || skip "axe-core and playwright-core do not install"

rm -rf "$out/drafter" "$out/release" "$out/recipe.toml" "$out/both"
"${convertkit%convertkit}python" -m convertkit.demo dflash2 "$out/drafter" --on-grid --scale tiny
"$convertkit" release init "$out/drafter" --target-id Qwen/Qwen3.8-27B --output "$out/recipe.toml" --quiet
"$convertkit" release "$out/recipe.toml" "$out/release" --quiet
node "$out/node/check.mjs" "$out/release" "$out/shots"
mkdir "$out/both"
"$convertkit" report "$out/release" --compare "$out/release/bf16" --output "$out/both/BOTH.html" --quiet
node "$out/node/check.mjs" "$out/both" "$out/shots-both" BOTH.html
