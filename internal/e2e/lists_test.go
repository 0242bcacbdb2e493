package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"sandgate/internal/testenv"
)

// records answers names from a table.
func records(table map[string]string) func(*dns.Msg) *dns.Msg {
	return func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg)
		m.SetReply(q)
		addr, known := table[strings.ToLower(q.Question[0].Name)]
		switch {
		case !known:
			m.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			rr, _ := dns.NewRR(q.Question[0].Name + " 30 IN A " + addr)
			m.Answer = append(m.Answer, rr)
		}
		return m
	}
}

// serve answers HTTP in the world at an address, with that address.
func (w world) serve(addr string) {
	w.t.Helper()
	w.ip("-n", w.name, "addr", "add", addr+"/32", "dev", "lo")
	for _, port := range []string{"80", "8080"} {
		l, err := testenv.ListenWithin("/run/netns/"+w.name, addr+":"+port)
		require.NoError(w.t, err)
		serveAs(w.t, l, addr)
	}
}

func serveAs(t *testing.T, l net.Listener, name string) {
	t.Helper()
	answer := func(rw http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(rw, "this is "+name) }
	s := &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: time.Minute}
	go s.Serve(l) //nolint:errcheck // ends with Close
	t.Cleanup(func() { _ = s.Close() })
}

// What a sandbox reaches follows its mode, by name and by address, while it runs and over a crash of the server.
func TestModesAndListsOfANetwork(t *testing.T) {
	host := newInstallation(t)
	w := newWorld(t)
	for _, addr := range []string{"1.2.3.4", "8.8.4.4", "9.9.9.9"} {
		w.serve(addr)
	}
	answerNames(t, records(map[string]string{
		"one.example.": "1.2.3.4", "sub.two.example.": "8.8.4.4", "two.example.": "8.8.4.4", "three.example.": "9.9.9.9",
		"inner.example.": "192.168.3.3", "opened.example.": "10.50.0.1", "cloud.example.": "169.254.169.254",
	}))
	// Two services of the host's own, on an address that it has; the operator opens one.
	w.ip("addr", "add", "10.50.0.1/32", "dev", "lo")
	t.Cleanup(func() { w.ip("addr", "del", "10.50.0.1/32", "dev", "lo") })
	for _, port := range []string{"8099", "8100"} {
		l, err := net.Listen("tcp4", "10.50.0.1:"+port)
		require.NoError(t, err)
		serveAs(t, l, "10.50.0.1")
	}
	flags := []string{"--jail-pool", "10.77.0.0/20", "--jail-allow", "10.50.0.1:8099"}
	s := host.serve(flags...)
	host.person("ann@example.org", "alpha")
	runs, manages := host.key("alpha", "sandboxes:run"), host.key("alpha", "sandboxes:manage")
	api, manage := s.rest(runs), s.rest(manages)
	id := api.create("modes")
	patch := func(mode string, allow ...string) {
		t.Helper()
		manage.ok("PATCH", "/v1/sandboxes/"+id, map[string]any{"network": map[string]any{"mode": mode, "allow": allow}}, nil)
	}
	// check asks for each and says what came: the address of who answered, or that it was refused at once.
	check := func(want map[string]string) {
		t.Helper()
		for to, who := range want {
			out := api.exec(id, "curl -sS --max-time 8 http://"+to+"/")
			if who == "" {
				require.Contains(t, []int{6, 7}, out.ExitCode, "%s: not found or refused, and no time-out: %s%s", to, out.Stdout, out.Stderr)
				continue
			}
			require.Equal(t, "this is "+who+"\n", out.Stdout, "%s: %s", to, out.Stderr)
		}
	}
	public := map[string]string{
		"1.2.3.4": "1.2.3.4", "one.example": "1.2.3.4", "ONE.example.": "1.2.3.4", "three.example:8080": "9.9.9.9",
		"inner.example": "", "cloud.example": "", "192.168.3.3": "", "missing.example": "",
		"10.50.0.1:8099": "10.50.0.1", "opened.example:8099": "10.50.0.1", "10.50.0.1:8100": "", "opened.example:8100": "", "10.77.0.1": "", "127.0.0.1" + s.url[strings.LastIndex(s.url, ":"):]: "",
	}
	listed := map[string]string{
		"one.example": "1.2.3.4", "one.example:8080": "", "sub.two.example:8080": "8.8.4.4", "two.example": "", "three.example": "", "9.9.9.9:8080": "9.9.9.9", "9.9.9.9": "",
		"10.50.0.1:8099": "",
	}
	list := []string{"one.example:80", "*.two.example", "9.9.9.9:8080"}
	check(public)
	out := api.exec(id, `python3 -c '
import re, socket, struct
server = re.search(r"nameserver (\S+)", open("/etc/resolv.conf").read())[1]
q = bytes.fromhex("123401000001000000000000036f6e65076578616d706c650000010001")
s = socket.create_connection((server, 53), 5)
s.sendall(struct.pack(">H", len(q)) + q)
print(socket.inet_ntoa(s.recv(512)[-4:]))'`)
	require.Equal(t, "1.2.3.4\n", out.Stdout, out.Stderr)
	patch("allow-list", list...)
	check(listed)

	s.stop(syscall.SIGKILL)
	s = host.serve(flags...)
	api, manage = s.rest(runs), s.rest(manages)
	check(listed)
	patch("none")
	check(map[string]string{"1.2.3.4": "", "one.example": "", "9.9.9.9:8080": ""})
	patch("public")
	check(map[string]string{"two.example": "8.8.4.4", "9.9.9.9": "9.9.9.9"})

	// Sandboxes keep their pool: another one waits until they are gone.
	s.stop(syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	said, err := host.command(ctx, "serve", "--listen", "127.0.0.1:0", "--jail-pool", "off").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(said), "1 sandboxes were made with 10.77.0.0/20")

	// With the server down a command finds the same jail, pool and all, and takes it off.
	require.Equal(t, "1 killed", host.run("sandbox", "kill", "--all"))
	host.nothingLeft()
	left, err := os.ReadFile(host.data + "/jail.json")
	require.NoError(t, err)
	require.Contains(t, string(left), "10.77.0.0/20")

	// Where the operator wants no networks there are none, and nobody is promised one.
	s = host.serve("--jail-pool", "off")
	api = s.rest(runs)
	code, body := api.do("POST", "/v1/sandboxes", map[string]any{"network": map[string]any{"mode": "public"}})
	require.Equal(t, http.StatusUnprocessableEntity, code, "%s", body)
	code, body = api.do("POST", "/v1/sandboxes", map[string]any{"platform_key": true})
	require.Equal(t, http.StatusUnprocessableEntity, code, "%s", body)
	id = api.create("off")
	check(map[string]string{"1.2.3.4": "", "one.example": ""})
}
