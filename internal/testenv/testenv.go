// Package testenv owns what tests may ask of the machine they run on: root, runsc, an image, a browser, the SDK,
// schemathesis, built programs. It is the one place where a test is skipped, and must never skip what SANDGATE_REQUIRE names: that fails instead.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Requirements that SANDGATE_REQUIRE can name, comma-separated; "all" names every one.
const (
	NeedRoot         = "root"
	NeedRunsc        = "runsc"
	NeedImage        = "image"
	NeedBrowser      = "browser"
	NeedSDK          = "sdk"
	NeedNode         = "node"
	NeedSchemathesis = "schemathesis"
)

// missing skips the test, or fails it where the requirement is named.
func missing(t testing.TB, need, why string) {
	t.Helper()
	named := strings.Split(os.Getenv("SANDGATE_REQUIRE"), ",")
	if slices.Contains(named, need) || slices.Contains(named, "all") {
		t.Fatalf("%s (SANDGATE_REQUIRE names %q)", why, need)
	}
	t.Skip(why)
}

// Root needs the test to run as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, NeedRoot, "this test makes namespaces, cgroups and mounts: run it as root")
	}
}

// CacheDir is where runsc and images are kept: $SANDGATE_CACHE, else /var/cache/sandgate.
func CacheDir() string {
	if dir := os.Getenv("SANDGATE_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/sandgate"
}

// Runsc gives the path of the runsc that "make test" built.
func Runsc(t testing.TB) string {
	t.Helper()
	Root(t)
	if p := os.Getenv("SANDGATE_RUNSC"); p != "" {
		return p
	}
	pattern := filepath.Join(CacheDir(), "runsc-*", "runsc") // the directory's name is the version's
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		missing(t, NeedRunsc, "no runsc at "+pattern+`: "make prepare" builds it`)
	}
	return found[len(found)-1]
}

// Image gives the directory of the root filesystem named base, and checks that runsc is there too.
func Image(t testing.TB) string {
	t.Helper()
	Runsc(t)
	p := filepath.Join(CacheDir(), "images", "base", "current")
	dir, err := filepath.EvalSymlinks(p)
	if err != nil {
		missing(t, NeedImage, "no image at "+p+`: "make prepare" builds it`)
	}
	return filepath.Join(dir, "rootfs")
}

// Browser gives the path of a Chromium.
func Browser(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			return p
		}
	}
	missing(t, NeedBrowser, `no Chromium on PATH: "tools/packages.sh test" installs it`)
	return ""
}

// SDK gives the path of a Python that has the noxus-sdk.
func SDK(t testing.TB) string {
	t.Helper()
	p := filepath.Join(CacheDir(), "sdk", "bin", "python")
	if _, err := os.Stat(p); err != nil {
		missing(t, NeedSDK, "no SDK at "+p+`: "make prepare" installs it`)
	}
	return p
}

// Node gives the path of a Node that finds the packages of package.json from the tree.
func Node(t testing.TB) string {
	t.Helper()
	p, err := exec.LookPath("node")
	if err != nil {
		missing(t, NeedNode, `no node on PATH: "tools/packages.sh run" installs it`)
	}
	if _, err := os.Stat(filepath.Join(Top(t), "node_modules", "@modelcontextprotocol", "sdk")); err != nil {
		missing(t, NeedNode, `no node_modules: "npm ci" installs them`)
	}
	return p
}

// Schemathesis gives the path of the program that walks an API from its document.
func Schemathesis(t testing.TB) string {
	t.Helper()
	p := filepath.Join(CacheDir(), "schemathesis", "bin", "schemathesis")
	if _, err := os.Stat(p); err != nil {
		missing(t, NeedSchemathesis, "no schemathesis at "+p+`: "make prepare" installs it`)
	}
	return p
}

// Program gives the path of a built program ("sandgate", "sandgate-agent"); it fails when it was not built.
func Program(t testing.TB, name string) string {
	t.Helper()
	p := filepath.Join(Top(t), "bin", name)
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%s is not built: run \"make build\" first", p)
	}
	return p
}

// Top gives the directory of go.mod.
func Top(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test's directory")
		}
		dir = up
	}
}
