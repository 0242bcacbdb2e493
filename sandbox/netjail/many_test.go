package netjail

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/florianl/go-nflog/v2"
	"github.com/stretchr/testify/require"

	"sandgate/sandbox"
)

func TestManyAtOnce(t *testing.T) {
	j := open(t, Options{Inst: "thnm", Pool: netip.MustParsePrefix("10.214.0.0/27")})
	const many = 8
	var wg sync.WaitGroup
	errs := make(chan error, 4*many)
	for range many {
		wg.Go(func() {
			id := sandbox.NewID()
			_, err := j.Attach(t.Context(), id, public, free)
			errs <- err
			errs <- j.Change(t.Context(), id, sandbox.NetworkPolicy{Mode: sandbox.NetworkNone})
			errs <- j.Check(t.Context())
			errs <- j.Detach(t.Context(), id)
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Empty(t, leftovers(t, j))
	require.Len(t, j.released, many, "each had an address of its own, and it rests")
}

// A report holds a packet that a sandbox made.
func FuzzReadReport(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 213, 0, 9, 10, 0, 0, 1, 1, 2, 0, 80})
	f.Add([]byte{0x4f, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0, 10, 213, 0, 9, 10, 0, 0, 1})
	f.Add([]byte{0x60})
	f.Fuzz(func(t *testing.T, packet []byte) {
		link, why := uint32(7), "private"
		e, ok := read(nflog.Attribute{InDev: &link, Payload: &packet, Prefix: &why}, time.Time{})
		require.True(t, ok)
		require.LessOrEqual(t, len(e.proto), 4)
	})
}
