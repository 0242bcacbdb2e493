package netjail

import (
	stdcmp "cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers. The first four are those that everything fits in; the small ones hold the parts of a concatenated key in a row.
const (
	reg1   = unix.NFT_REG_1
	regKey = unix.NFT_REG32_00 // a key starts here
)

// part loads one part of a key into a register and says how many of the small registers it takes.
type part struct {
	load  func(reg uint32) []expr.Any
	words uint32
}

func one(f func(reg uint32) expr.Any) func(uint32) []expr.Any {
	return func(reg uint32) []expr.Any { return []expr.Any{f(reg)} }
}

var (
	partLink  = part{one(func(r uint32) expr.Any { return &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: r} }), 4}
	partSrc   = part{one(func(r uint32) expr.Any { return header(r, 12, 4) }), 1}
	partDst   = part{one(func(r uint32) expr.Any { return header(r, 16, 4) }), 1}
	partPort  = part{one(func(r uint32) expr.Any { return transport(r, 2, 2) }), 1}
	partZero  = part{one(func(r uint32) expr.Any { return &expr.Immediate{Register: r, Data: []byte{0, 0, 0, 0}} }), 1}
	partCMark = part{one(func(r uint32) expr.Any { return &expr.Ct{Key: expr.CtKeyMARK, Register: r} }), 1}
)

// partNet is the network of so many bits that the destination is in, and how many they are.
func partNet(bits int) part {
	return part{func(r uint32) []expr.Any {
		return []expr.Any{
			header(r, 16, 4),
			&expr.Bitwise{SourceRegister: r, DestRegister: r, Len: 4, Mask: maskOf(bits), Xor: make([]byte, 4)},
			&expr.Immediate{Register: r + 1, Data: bitsKey(bits)},
		}
	}, 2}
}

func maskOf(bits int) []byte { return binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-bits)) }

func bitsKey(bits int) []byte { return []byte{0, 0, 0, byte(bits)} }

func header(reg, offset, length uint32) expr.Any {
	return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

func transport(reg, offset, length uint32) expr.Any {
	return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length}
}

// key loads parts side by side.
func key(parts ...part) []expr.Any {
	var out []expr.Any
	at := uint32(0)
	for _, p := range parts {
		out = append(out, p.load(regKey+at)...)
		at += p.words
	}
	return out
}

// in goes on where the key of those parts is in the set; with not, where it is absent.
func in(s *nftables.Set, not bool, parts ...part) []expr.Any {
	return append(key(parts...), &expr.Lookup{SourceRegister: regKey, SetName: s.Name, SetID: s.ID, Invert: not})
}

// verdictOf does what the map says about the key, and goes on where it says nothing.
func verdictOf(s *nftables.Set, parts ...part) []expr.Any {
	return append(key(parts...), &expr.Lookup{SourceRegister: regKey, SetName: s.Name, SetID: s.ID, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true})
}

// meter goes on where the expression, kept apart for every key, does.
func meter(s *nftables.Set, op uint32, e expr.Any, parts ...part) []expr.Any {
	return append(key(parts...), &expr.Dynset{SrcRegKey: regKey, SetName: s.Name, SetID: s.ID, Operation: op, Exprs: []expr.Any{e}})
}

func cmp(op expr.CmpOp, data []byte) expr.Any {
	return &expr.Cmp{Op: op, Register: reg1, Data: data}
}

// linkStarts matches links whose name starts with a mark: a comparison that is shorter than a name compares its beginning.
func linkStarts(k expr.MetaKey, mark string, not bool) []expr.Any {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return []expr.Any{&expr.Meta{Key: k, Register: reg1}, cmp(op, []byte(mark))}
}

func isProto(p byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, cmp(expr.CmpOpEq, []byte{p})}
}

func isFamily(op expr.CmpOp, f byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, cmp(op, []byte{f})}
}

func isDst(a netip.Addr) []expr.Any {
	b := a.As4()
	return []expr.Any{header(reg1, 16, 4), cmp(expr.CmpOpEq, b[:])}
}

func isSrc(a netip.Addr) []expr.Any {
	b := a.As4()
	return []expr.Any{header(reg1, 12, 4), cmp(expr.CmpOpEq, b[:])}
}

// inPrefix matches an address of the header, at offset 12 (source) or 16 (destination), against a prefix.
func inPrefix(offset uint32, p netip.Prefix, not bool) []expr.Any {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	base := p.Masked().Addr().As4()
	return []expr.Any{
		header(reg1, offset, 4),
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: maskOf(p.Bits()), Xor: make([]byte, 4)},
		cmp(op, base[:]),
	}
}

func isPort(offset uint32, port uint16) []expr.Any {
	return []expr.Any{transport(reg1, offset, 2), cmp(expr.CmpOpEq, binary.BigEndian.AppendUint16(nil, port))}
}

func addrType(kind uint32) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg1, ResultADDRTYPE: true, FlagDADDR: true},
		cmp(expr.CmpOpEq, binaryutil.NativeEndian.PutUint32(kind)),
	}
}

// masked compares the bits of mask of what load puts into reg1 (in host order) with want.
func masked(load expr.Any, op expr.CmpOp, mask, want uint32) []expr.Any {
	return []expr.Any{
		load,
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: make([]byte, 4)},
		cmp(op, binaryutil.NativeEndian.PutUint32(want)),
	}
}

func ctState(bits uint32) []expr.Any {
	return masked(&expr.Ct{Key: expr.CtKeySTATE, Register: reg1}, expr.CmpOpNeq, bits, 0)
}

func hasMark(op expr.CmpOp, mark uint32) []expr.Any {
	return masked(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1}, op, mark, mark)
}

// setMark sets the bits of mark and leaves the others to those who own them.
func setMark(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1},
		&expr.Bitwise{
			SourceRegister: reg1, DestRegister: reg1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^mark), Xor: binaryutil.NativeEndian.PutUint32(mark),
		},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg1},
	}
}

func accept() expr.Any             { return &expr.Verdict{Kind: expr.VerdictAccept} }
func drop() expr.Any               { return &expr.Verdict{Kind: expr.VerdictDrop} }
func toChain(name string) expr.Any { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: name} }

// intervals gives the elements of an interval set that holds prefixes which may overlap or touch.
func intervals(prefixes []netip.Prefix) []nftables.SetElement {
	type span struct{ from, to uint64 }
	var spans []span
	for _, p := range prefixes {
		base := p.Masked().Addr().As4()
		from := uint64(binary.BigEndian.Uint32(base[:]))
		spans = append(spans, span{from, from + 1<<(32-p.Bits())})
	}
	slices.SortFunc(spans, func(a, b span) int { return stdcmp.Compare(a.from, b.from) })
	var merged []span
	for _, s := range spans {
		if n := len(merged); n > 0 && s.from <= merged[n-1].to {
			merged[n-1].to = max(merged[n-1].to, s.to)
			continue
		}
		merged = append(merged, s)
	}
	var out []nftables.SetElement
	for _, s := range merged {
		out = append(out, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, uint32(s.from))})
		if s.to < 1<<32 { // one that reaches to the end has none
			out = append(out, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, uint32(s.to)), IntervalEnd: true})
		}
	}
	return out
}

// last gives the last address of an IPv4 prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	n := binary.BigEndian.Uint32(b[:]) | (1<<(32-p.Bits()) - 1)
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}
