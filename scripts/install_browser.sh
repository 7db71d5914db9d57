#!/usr/bin/env bash
# A Chromium for the tests of the page of a plan. Takes one that is there; installs Debian's where this user may.
# Never fails: without a browser these tests are skipped, and pytest says so at the end of its output.
set -uo pipefail

if [ -n "${FROSTLINE_CHROMIUM:-}" ]; then exit 0; fi  # the tests say so where it names no program
names=(chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable chrome)
for name in "${names[@]}"; do
    command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "no Chromium here, and none can be installed: the tests of the page of a plan will be skipped" >&2
    exit 0
fi
echo "installing a Chromium for the tests of the page of a plan"
export DEBIAN_FRONTEND=noninteractive
timeout 120 apt-get update -qq >/dev/null 2>&1
for package in chromium-headless-shell chromium; do
    timeout 300 apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 && exit 0
done
echo "no Chromium could be installed: the tests of the page of a plan will be skipped" >&2
