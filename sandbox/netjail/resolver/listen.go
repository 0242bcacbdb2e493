package resolver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"

	"sandgate/sandbox"
)

// serveUDP reads questions until pc is closed. What is cheap is done here; what may wait has a goroutine of its own, of
// which clients bounds the number.
func (r *Resolver) serveUDP(ctx context.Context, pc net.PacketConn) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	buf := make([]byte, maxQuery+1)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				continue
			}
			return err
		}
		addr, ok := sourceOf(from)
		if !ok || n > maxQuery || !isQuestion(buf[:n]) {
			continue
		}
		id, _, ok := r.o.Lookup(addr)
		if !ok {
			continue
		}
		switch v := r.clients.enter(id); v {
		case pass:
			packet := append([]byte(nil), buf[:n]...)
			wg.Go(func() {
				defer r.clients.leave(id)
				if out := r.answer(ctx, addr, packet, false); out != nil {
					_, _ = pc.WriteTo(out, from)
				}
			})
		default:
			if out := r.turnAway(id, v, buf[:n]); out != nil {
				_, _ = pc.WriteTo(out, from)
			}
		}
	}
}

// serveTCP takes connections until ln is closed, a few of each sandbox.
func (r *Resolver) serveTCP(ctx context.Context, ln net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			var ne net.Error
			if !errors.As(err, &ne) {
				return err
			}
			select { // out of descriptors, most likely: give it a moment
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		addr, ok := sourceOf(conn.RemoteAddr())
		if !ok {
			_ = conn.Close()
			continue
		}
		id, _, ok := r.o.Lookup(addr)
		if !ok || !r.clients.connect(id) {
			_ = conn.Close()
			continue
		}
		wg.Go(func() {
			defer r.clients.disconnect(id)
			defer conn.Close() //nolint:errcheck // nothing to lose
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			r.serveConn(ctx, conn, addr)
		})
	}
}

// serveConn answers one question after the other: who sends many at once waits, and holds nothing but its connection.
func (r *Resolver) serveConn(ctx context.Context, conn net.Conn, addr netip.Addr) {
	var size [2]byte
	for range maxPerConn {
		_ = conn.SetDeadline(time.Now().Add(idleConn))
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(size[:]))
		if n > maxQuery {
			return
		}
		packet := make([]byte, n)
		if _, err := io.ReadFull(conn, packet); err != nil || !isQuestion(packet) {
			return
		}
		id, _, ok := r.o.Lookup(addr)
		if !ok {
			return
		}
		var out []byte
		if v := r.clients.enter(id); v == pass {
			out = r.answer(ctx, addr, packet, true)
			r.clients.leave(id)
		} else {
			out = r.turnAway(id, v, packet)
		}
		if out == nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(idleConn))
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)); err != nil {
			return
		}
	}
}

// turnAway answers without a look at the question.
func (r *Resolver) turnAway(id sandbox.ID, v verdict, packet []byte) []byte {
	switch v {
	case refuse:
		r.denials.add(id, otherNames, WhyTooMany)
		return bare(packet, dns.RcodeRefused)
	case busy:
		return bare(packet, dns.RcodeServerFailure)
	case silent:
		r.denials.add(id, otherNames, WhyTooMany)
	}
	return nil
}

func sourceOf(a net.Addr) (netip.Addr, bool) {
	var addr netip.Addr
	switch a := a.(type) {
	case *net.UDPAddr:
		addr = a.AddrPort().Addr()
	case *net.TCPAddr:
		addr = a.AddrPort().Addr()
	}
	return addr.Unmap(), addr.IsValid()
}

const headerLen = 12

// isQuestion tells a question from an answer, which is never answered: two that answer each other's answers never end.
func isQuestion(p []byte) bool { return len(p) >= headerLen && p[2]&0x80 == 0 }

// bare makes an answer of nothing but a code from a packet that isQuestion, with the question when there is a plain one.
func bare(p []byte, rcode int) []byte {
	end, count := questionEnd(p), byte(1)
	if end == 0 {
		end, count = headerLen, 0
	}
	out := append([]byte(nil), p[:end]...)
	out[2] = 0x80 | p[2]&0x79 // answer; opcode and "recursion desired" as asked
	out[3] = 0x80 | byte(rcode&0x0f)
	clear(out[4:headerLen])
	out[5] = count
	return out
}

// questionEnd finds the end of the only question of p, 0 when there is none in plain form.
func questionEnd(p []byte) int {
	if binary.BigEndian.Uint16(p[4:]) != 1 {
		return 0
	}
	at := headerLen
	for at < len(p) && p[at] != 0 {
		if p[at] > 63 || at-headerLen > 255 {
			return 0
		}
		at += int(p[at]) + 1
	}
	if at+5 > len(p) {
		return 0
	}
	return at + 5
}
