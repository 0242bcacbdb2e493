package seal

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSeal(t *testing.T) {
	b, err := New(bytes.Repeat([]byte{1}, KeyLen))
	require.NoError(t, err)
	sealed := b.Seal([]byte("hunter2"), "one")
	require.NotContains(t, string(sealed), "hunter2")
	require.NotEqual(t, sealed, b.Seal([]byte("hunter2"), "one"))
	plain, err := b.Open(sealed, "one")
	require.NoError(t, err)
	require.Equal(t, "hunter2", string(plain))

	_, err = b.Open(sealed, "two")
	require.Error(t, err)
	_, err = b.Open(sealed[:5], "one")
	require.Error(t, err)
	sealed[len(sealed)-1] ^= 1
	_, err = b.Open(sealed, "one")
	require.Error(t, err)

	other, err := New(bytes.Repeat([]byte{2}, KeyLen))
	require.NoError(t, err)
	_, err = other.Open(b.Seal(nil, "x"), "x")
	require.Error(t, err)
	require.NotEqual(t, b.Digest([]byte("a")), other.Digest([]byte("a")))
	require.Equal(t, b.Digest([]byte("a")), b.Digest([]byte("a")))
	_, err = New([]byte("short"))
	require.Error(t, err)
}
