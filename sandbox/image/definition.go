package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// builderVersion goes into every definition's digest: raise it when the steps around the packages change.
const builderVersion = 1

// Definition is the recipe of an image: a Debian suite, packages of it, and packages of the Python index.
type Definition struct {
	Name     string   `json:"name"`
	Suite    string   `json:"suite"`
	Variant  string   `json:"variant"` // of mmdebstrap
	Packages []string `json:"packages"`
	Python   []string `json:"python"` // exact versions; installed into the system's Python

	testOnly bool
}

var definitions = map[string]Definition{
	"base": {
		Name:    "base",
		Suite:   "trixie",
		Variant: "minbase",
		Packages: []string{
			"bash", "coreutils", "curl", "git", "ca-certificates", "iproute2", "python3", "python-is-python3", "python3-pip",
			"python3-venv", "nano", "less", "procps", "tmux", "sudo", "ncurses-term", "netbase", "libnss-myhostname",
		},
		Python: []string{"noxus-sdk==0.6.0"},
	},
	// tiny has a shell and nothing else: it is for tests that need a real image in seconds.
	"tiny": {
		Name:     "tiny",
		Suite:    "trixie",
		Variant:  "custom",
		Packages: []string{"busybox-static"},
		testOnly: true,
	},
}

func (d Definition) digest() string {
	b, err := json.Marshal(struct {
		Definition
		Builder int `json:"builder"`
	}{d, builderVersion})
	if err != nil {
		panic(err) // strings and numbers only: cannot fail
	}
	return hexSum(b)
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// RequiredPackages are the Debian packages that building needs on the host.
func RequiredPackages() []string {
	return []string{"mmdebstrap", "debian-archive-keyring", "util-linux", "ca-certificates"}
}
