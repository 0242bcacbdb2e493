package sandboxtest_test

import (
	"os"
	"testing"

	"sandgate/sandbox"
	"sandgate/sandbox/sandboxtest"
)

func TestFakeKeepsTheContract(t *testing.T) {
	sandboxtest.RunRuntime(t, func(t *testing.T) sandboxtest.Subject {
		dir := t.TempDir()
		fake := sandboxtest.NewFake(sandboxtest.FakeOptions{Dir: dir})
		return sandboxtest.Subject{
			Runtime: fake, Image: "base",
			Left: func() ([]string, error) {
				entries, err := os.ReadDir(dir)
				var out []string
				for _, e := range entries {
					if _, err := fake.Saved(t.Context(), sandbox.SaveID(e.Name())); err == nil {
						continue // the files of a suspended one
					}
					out = append(out, e.Name())
				}
				return out, err
			},
		}
	})
}

func TestFakeNetworkKeepsTheContract(t *testing.T) {
	sandboxtest.RunNetwork(t, func(*testing.T) sandboxtest.NetworkSubject {
		return sandboxtest.NetworkSubject{Network: &sandboxtest.FakeNetwork{}}
	})
}
