package approval

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"sandgate/auth"
)

// Request is what was asked for, whole and unchangeable: what is decided about is the digest of all of it.
type Request struct {
	ID          string
	Kind        Kind
	Action      string // "command.run", …
	WorkspaceID string
	SandboxID   string
	Incarnation int64 // of the sandbox
	Image       string
	Requester   Requester
	Reason      string // in the requester's words
	Why         string // which policy asked
	Policy      string // digest of the policies
	CreatedAt   time.Time

	Params  map[string]string // what the caller gave: command, cwd, path, …
	Env     map[string]string // all variables that the process gets, but for secrets
	Secrets []string          // names of secrets that it gets, too
	State   map[string]string // what was found inside: the resolved path, digests of what is replaced, …
	Blobs   []Blob            // contents that are kept with the request
	Before  []Past            // what the requester did here last, the newest first
	Unbound []string          // what the approval does not bind, in words
}

// Requester is who asks.
type Requester struct {
	Kind   auth.ActorKind `json:"kind"`
	UserID string         `json:"user_id"` // of the person, or of the key's owner; "" for service accounts
	KeyID  string         `json:"key_id"`
	Name   string         `json:"name"`
	Owner  string         `json:"owner"` // e-mail of the key's owner
	From   string         `json:"from"`  // address
}

// Blob is a content that is kept with a request. Bound ones are executed or written; the others are there to compare with.
type Blob struct {
	Name   string `json:"name"`
	Path   string `json:"path,omitempty"` // inside, of a bound file
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	Given  bool   `json:"given"` // by the caller: part of what it asks for
	Bound  bool   `json:"bound"`
	Data   []byte `json:"-"`
}

// Names of blobs.
const (
	BlobStdin   = "stdin"
	BlobContent = "content"
	BlobOld     = "old"    // what is replaced, to compare with
	BlobScript  = "script" // followed by a number: a file that the command runs
)

// NewBlob digests data.
func NewBlob(name string, data []byte, given, bound bool) Blob {
	sum := sha256.Sum256(data)
	return Blob{Name: name, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data)), Given: given, Bound: bound, Data: data}
}

// Compared reports whether it is a file that has to be there unchanged when the command starts.
func (b Blob) Compared() bool { return strings.HasPrefix(b.Name, BlobScript) }

// Past is something that happened before.
type Past struct {
	Seq     int64     `json:"seq"`
	At      time.Time `json:"at"`
	Action  string    `json:"action"`
	Target  string    `json:"target"`
	Outcome string    `json:"outcome"`
}

// Blob gives the one of a name; nil: none.
func (r *Request) Blob(name string) *Blob {
	for i := range r.Blobs {
		if r.Blobs[i].Name == name {
			return &r.Blobs[i]
		}
	}
	return nil
}

// field writes a length and the bytes: no two different sequences of fields look alike.
func field(w io.Writer, s string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(s)))
	_, _ = w.Write(n[:]) // hashes and buffers take everything
	_, _ = io.WriteString(w, s)
}

func number(w io.Writer, n int64) { field(w, fmt.Sprint(n)) }

func pairs(w io.Writer, m map[string]string) {
	number(w, int64(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		field(w, k)
		field(w, m[k])
	}
}

func words(w io.Writer, list []string) {
	number(w, int64(len(list)))
	for _, s := range list {
		field(w, s)
	}
}

const magic = "sandgate approval 1"

// Canonical writes the request: length-prefixed fields in one order, of contents their digests. It is what is kept, and
// what is digested.
func (r *Request) Canonical() ([]byte, error) {
	var b bytes.Buffer
	for _, s := range []string{magic, r.ID, string(r.Kind), r.Action, r.WorkspaceID, r.SandboxID} {
		field(&b, s)
	}
	number(&b, r.Incarnation)
	for _, s := range []string{r.Image, r.Reason, r.Why, r.Policy} {
		field(&b, s)
	}
	number(&b, r.CreatedAt.UnixMicro())
	pairs(&b, r.Params)
	pairs(&b, r.Env)
	words(&b, r.Secrets)
	pairs(&b, r.State)
	for _, v := range []any{r.Requester, r.Blobs, r.Before} { // of plain values: one encoding each
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		field(&b, string(text))
	}
	words(&b, r.Unbound)
	return b.Bytes(), nil
}

// Digest is the SHA-256 (hex) of the canonical bytes.
func (r *Request) Digest() (string, error) {
	text, err := r.Canonical()
	if err != nil {
		return "", err
	}
	return Sum(text), nil
}

// Sum is the SHA-256 of bytes in hex.
func Sum(p []byte) string {
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}

// Asked writes only what the caller gave and who it is: two calls with the same bytes ask for the same.
func (r *Request) Asked() []byte {
	var b bytes.Buffer
	for _, s := range []string{magic + " asked", string(r.Kind), r.Action, r.WorkspaceID, r.SandboxID, r.Requester.UserID, r.Requester.KeyID} {
		field(&b, s)
	}
	pairs(&b, r.Params)
	pairs(&b, r.Env)
	words(&b, r.Secrets)
	for _, blob := range r.Blobs {
		if blob.Given {
			field(&b, blob.Name)
			field(&b, blob.SHA256)
		}
	}
	return b.Bytes()
}

var errDamaged = errors.New("approval: the kept request is damaged")

// reader takes fields off canonical bytes; the first error stays.
type reader struct {
	p   []byte
	err error
}

func (r *reader) field() string {
	if r.err != nil {
		return ""
	}
	if len(r.p) < 8 {
		r.err = errDamaged
		return ""
	}
	n := binary.BigEndian.Uint64(r.p)
	if r.p = r.p[8:]; n > uint64(len(r.p)) {
		r.err = errDamaged
		return ""
	}
	s := string(r.p[:n])
	r.p = r.p[n:]
	return s
}

func (r *reader) number() int64 {
	text := r.field()
	var n int64
	if _, err := fmt.Sscan(text, &n); err != nil || fmt.Sprint(n) != text {
		r.err = errors.Join(r.err, errDamaged)
	}
	return n
}

func (r *reader) count() int {
	n := r.number()
	if n < 0 || n > int64(len(r.p)) {
		r.err = errors.Join(r.err, errDamaged)
		return 0
	}
	return int(n)
}

func (r *reader) pairs() map[string]string {
	n := r.count()
	m := make(map[string]string, n)
	for range n {
		k := r.field()
		m[k] = r.field()
	}
	return m
}

func (r *reader) words() []string {
	var out []string
	for range r.count() {
		out = append(out, r.field())
	}
	return out
}

// ReadRequest reads canonical bytes, and refuses every other writing of the same.
func ReadRequest(text []byte) (*Request, error) {
	in := &reader{p: text}
	if in.field() != magic {
		return nil, errDamaged
	}
	r := &Request{ID: in.field(), Kind: Kind(in.field()), Action: in.field(), WorkspaceID: in.field(), SandboxID: in.field()}
	r.Incarnation = in.number()
	r.Image, r.Reason, r.Why, r.Policy = in.field(), in.field(), in.field(), in.field()
	r.CreatedAt = time.UnixMicro(in.number()).UTC()
	r.Params, r.Env, r.Secrets, r.State = in.pairs(), in.pairs(), in.words(), in.pairs()
	for _, v := range []any{&r.Requester, &r.Blobs, &r.Before} {
		if err := json.Unmarshal([]byte(in.field()), v); err != nil {
			return nil, errors.Join(errDamaged, in.err, err)
		}
	}
	r.Unbound = in.words()
	if in.err != nil || len(in.p) > 0 {
		return nil, errDamaged
	}
	again, err := r.Canonical()
	if err != nil || !bytes.Equal(again, text) {
		return nil, errors.Join(errDamaged, err)
	}
	return r, nil
}
