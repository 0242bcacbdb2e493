package testenv_test

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.OwnNetwork(m.Run)) }

func TestTheNetworkIsOurs(t *testing.T) {
	testenv.Root(t)
	links, err := net.Interfaces()
	require.NoError(t, err)
	for _, l := range links {
		require.True(t, l.Flags&net.FlagLoopback != 0 || l.Flags&net.FlagUp == 0, "%s is none of ours", l.Name)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()

	conf, err := os.ReadFile("/etc/resolv.conf")
	require.NoError(t, err)
	require.Equal(t, "nameserver 127.0.0.1\n", string(conf))
	_, err = testenv.OutsideResolvers()
	require.NoError(t, err)

	here, err := os.Readlink("/proc/thread-self/ns/net")
	require.NoError(t, err)
	require.NoError(t, testenv.Outside(func() error {
		there, err := os.Readlink("/proc/thread-self/ns/net")
		require.NotEqual(t, here, there)
		return err
	}))
	again, err := os.Readlink("/proc/thread-self/ns/net")
	require.NoError(t, err)
	require.Equal(t, here, again)
}
