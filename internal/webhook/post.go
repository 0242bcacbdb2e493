package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"sandgate/sandbox/netjail/prefix"
)

const (
	attemptLimit = 10 * time.Second
	dialLimit    = 5 * time.Second
	maxAnswer    = 4 << 10 // bytes of an answer that are read, so that its connection can be used again
	maxHeader    = 16 << 10
	firstPause   = time.Second
	lastPause    = 5 * time.Minute
)

// newClient makes a client that judges each address at the moment it connects: whatever a name meant before, it is the
// address that counts. Redirects are answers like any other, and no proxy stands between: it would hide the address.
func newClient(allow []netip.Prefix) *http.Client {
	dialer := &net.Dialer{
		Timeout: dialLimit,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			return reachable(address, allow)
		},
	}
	return &http.Client{
		Timeout:       attemptLimit,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: dialLimit, MaxIdleConns: 1, IdleConnTimeout: time.Minute,
			MaxResponseHeaderBytes: maxHeader, ForceAttemptHTTP2: true, DisableCompression: true,
		},
	}
}

// reachable refuses addresses that are neither public nor allowed.
func reachable(address string, allow []netip.Prefix) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	addr := at.Addr().WithZone("").Unmap()
	for _, p := range allow {
		if p.Contains(addr) {
			return nil
		}
	}
	if why, denied := prefix.Denied(addr); denied {
		return fmt.Errorf("%s is not a public address (%s), and --webhook-allow does not name it", addr, why)
	}
	return nil
}

// post tells d once. The headers are those of Standard Webhooks, so that receivers find a library for them.
func (h *Hook) post(ctx context.Context, d *delivery) error {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.o.URL, bytes.NewReader(d.body))
	if err != nil {
		return errors.New("the URL cannot be asked")
	}
	stamp := strconv.FormatInt(h.o.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "Sandgate")
	req.Header.Set("webhook-id", d.id)
	req.Header.Set("webhook-timestamp", stamp)
	req.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(h.sign(d.id, stamp, d.body)))
	resp, err := h.client.Do(req)
	if err != nil {
		return outer(err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("the receiver answered %d", resp.StatusCode)
	}
	return nil
}

// outer leaves the URL out of an error: its path may hold a secret.
func outer(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

func (h *Hook) sign(id, stamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, h.o.Secret)
	for _, part := range [][]byte{[]byte(id), {'.'}, []byte(stamp), {'.'}, body} {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// Secret reads a secret as it stands in a file: "whsec_" and base64, or the bytes themselves without white space around.
func Secret(file []byte) ([]byte, error) {
	text := bytes.TrimSpace(file)
	if encoded, ok := bytes.CutPrefix(text, []byte("whsec_")); ok {
		plain, err := base64.StdEncoding.DecodeString(string(encoded))
		if err != nil {
			return nil, errors.New("what follows whsec_ is not base64")
		}
		text = plain
	}
	if len(text) < minSecret {
		return nil, fmt.Errorf("the secret must have %d bytes or more", minSecret)
	}
	return text, nil
}

// pause doubles, and varies by a fifth so that several senders do not come at once.
func pause(failed int) time.Duration {
	p := lastPause
	if failed < 9 { // 1 s << 8 is 256 s
		p = min(lastPause, firstPause<<max(failed-1, 0))
	}
	return p + time.Duration((mathrand.Float64()*0.4-0.2)*float64(p))
}

func newID() string { return "evt_" + rand.Text() }
