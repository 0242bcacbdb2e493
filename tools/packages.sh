#!/usr/bin/env bash
# Installs the Debian packages that a command needs and that are missing; quick and silent when none is.
# Usage: tools/packages.sh run|test
set -euo pipefail

want=${1:?usage: tools/packages.sh run|test}

# command (or file) -> package
run=(
  mmdebstrap:mmdebstrap                                              # makes the image of the sandboxes
  /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring # what the image's packages are signed with
  /etc/ssl/certs/ca-certificates.crt:ca-certificates
  git:git
  mount:mount
)
test=(
  gcc:gcc /usr/include/stdlib.h:libc6-dev                              # the race detector is built with cgo
  chromium:chromium                                                  # the browser tests
  /usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf:fonts-dejavu-core # so that their pictures have letters
  ip:iproute2 nft:nftables nsenter:util-linux                        # networks of their own for tests and the bench
  python3:python3                                                    # the SDK that scripts use
)

need=("${run[@]}")
if [[ $want == test ]]; then
  need+=("${test[@]}")
  # A Python from elsewhere brings venv itself; Debian's has it in a package.
  python3 -c 'import venv, ensurepip' 2>/dev/null || need+=(/nonexistent:python3-venv)
fi

missing=()
for entry in "${need[@]}"; do
  probe=${entry%%:*} package=${entry##*:}
  if [[ $probe == /* ]]; then [[ -e $probe ]] || missing+=("$package")
  else command -v "$probe" >/dev/null || missing+=("$package"); fi
done

if ((${#missing[@]})); then
  if ((EUID != 0)); then
    echo "These packages are missing: ${missing[*]}. Install them, or run this as root." >&2
    exit 1
  fi
  command -v apt-get >/dev/null || { echo "These are missing: ${missing[*]}. Install them: this system has no apt-get." >&2; exit 1; }
  echo "Installing ${missing[*]} ..."
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
fi

# Go and Node are not taken from Debian: its versions are too old.
go_need=1.26 node_need=20
go_have=$(go env GOVERSION 2>/dev/null | sed 's/^go//' || true)
[[ -n $go_have && $(printf '%s\n' "$go_need" "$go_have" | sort -V | head -n 1) == "$go_need" ]] ||
  { echo "Go $go_need or newer is needed on PATH; found: ${go_have:-none}." >&2; exit 1; }
node_have=$(node --version 2>/dev/null | sed 's/^v//' || true)
[[ -n $node_have && ${node_have%%.*} -ge $node_need ]] ||
  { echo "Node $node_need or newer, with npm, is needed on PATH; found: ${node_have:-none}." >&2; exit 1; }
