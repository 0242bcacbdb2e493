package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ownName begins the line of /etc/hosts that says what the sandbox is called; the last one.
const ownName = "127.0.1.1\t"

// NameServer writes into etc what programs inside need to find names: the resolver's address, and the sandbox's own name.
// Both are files of the sandbox's writable layer, and whoever is root inside may change them.
func NameServer(etc, resolver string) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name server: %w", err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(etc, "resolv.conf"), []byte("nameserver "+resolver+"\noptions timeout:2 attempts:3\n"), 0o644),
		os.WriteFile(filepath.Join(etc, "hosts"), []byte("127.0.0.1\tlocalhost\n"+ownName+host+"\n"), 0o644),
	)
}
