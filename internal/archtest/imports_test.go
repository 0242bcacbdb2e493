package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// own lists, for each package of ours, the packages of ours that its product code may import. A request flows one way:
// handlers, internal/workspace, then internal/approval, sandbox and internal/store. A package that is not listed here fails:
// adding a line is a decision about the architecture, and is read as one in review.
var own = map[string][]string{
	"internal/fault":      {},
	"internal/httpstatus": {"internal/fault"}, // one table from kinds to statuses, for both faces
	"auth":                {"internal/fault"},
	"auth/session":        {"auth", "internal/fault"},

	"sandbox":             {"internal/fault", "sandbox/agent", "sandbox/effect"},
	"sandbox/agent":       {"internal/fault"},
	"sandbox/agent/guest": {"internal/fault", "sandbox/agent"}, // runs inside: nothing of the host may get in
	"sandbox/effect":      {},                                  // compares what is given to it
	"sandbox/files":       {"internal/fault", "sandbox/agent"},
	"sandbox/idle":        {}, // a rule: it touches nothing
	"sandbox/image":       {"internal/fault"},

	"sandbox/netjail":          {"internal/fault", "sandbox", "sandbox/netjail/policy", "sandbox/netjail/prefix"},
	"sandbox/netjail/prefix":   {}, // one table for the filter and for Go
	"sandbox/netjail/policy":   {"internal/fault", "sandbox", "sandbox/netjail/prefix"},
	"sandbox/netjail/resolver": {"sandbox", "sandbox/netjail/policy", "sandbox/netjail/prefix"},

	"sandbox/runsc":       {"internal/fault", "sandbox", "sandbox/agent", "sandbox/effect", "sandbox/image"},
	"sandbox/sandboxtest": {"internal/fault", "sandbox", "sandbox/agent", "sandbox/agent/guest", "sandbox/effect"},
	"sandbox/screen":      {}, // bytes in, bytes out
	"sandbox/term":        {"internal/fault", "sandbox", "sandbox/agent", "sandbox/screen"},

	"sandbox/term/recording": {"internal/fault"}, // files and their format; knows no terminal

	"internal/seal":     {},
	"internal/webhook":  {"sandbox/netjail/prefix"}, // a table: which addresses are not public
	"internal/approval": {"auth", "internal/fault"},
	"internal/audit":    {"auth", "internal/fault"},
	"internal/workspace": {
		"auth", "internal/approval", "internal/audit", "internal/fault", "internal/seal", "internal/webhook",
		"sandbox", "sandbox/agent", "sandbox/effect", "sandbox/files", "sandbox/idle", "sandbox/term", "sandbox/term/recording",
	},
	// The store implements interfaces that others declare, in the values of those packages; nobody imports it but cmd.
	"internal/store": {"auth", "internal/approval", "internal/audit", "internal/fault", "sandbox", "sandbox/term/recording"},

	"internal/webhost": {},
	"internal/wsconn":  {"internal/fault", "internal/webhost"},

	// Handlers see values of sandbox (ids, records, frames), never what acts on one: see TestHandlersActThroughTheService.
	"handlers": {
		"auth", "internal/approval", "internal/audit", "internal/fault", "internal/httpstatus",
		"internal/webhost", "internal/workspace", "internal/wsconn",
		"sandbox", "sandbox/agent", "sandbox/effect", "sandbox/files", "sandbox/idle", "sandbox/term", "static", "views", "views/ui",
	},
	"handlers/api": {
		"auth", "internal/approval", "internal/audit", "internal/fault", "internal/httpstatus",
		"internal/webhost", "internal/workspace", "internal/wsconn",
		"sandbox", "sandbox/agent", "sandbox/effect", "sandbox/files", "sandbox/term",
	},
	"handlers/mcp": {
		"auth", "handlers/api", "internal/approval", "internal/fault", "internal/httpstatus", "internal/webhost", "internal/workspace", // api: how a request bears a key
		"sandbox", "sandbox/agent",
	},
	"views":    {"static", "views/ui"},
	"views/ui": {"static"},
	"static":   {},

	"cmd/sandgate":       {"*"}, // wires everything
	"cmd/sandgate-agent": {"sandbox/agent", "sandbox/agent/guest"},

	"internal/archtest": {},
	"internal/testenv":  {},
	"internal/e2e":      {}, // tests only
	"bench":             {}, // measures from outside
}

// outside lists packages that are not ours and may be imported by few, with those who may.
var outside = map[string][]string{
	"database/sql":                     {"internal/store"},
	"modernc.org/sqlite":               {"internal/store"},
	"github.com/pressly/goose/":        {"internal/store"},
	"github.com/labstack/echo/":        {"handlers", "handlers/api"},
	"github.com/modelcontextprotocol/": {"handlers/mcp", "cmd/sandgate"},
	"github.com/gorilla/":              {"auth/session"},
	"github.com/coder/websocket":       {"internal/wsconn", "cmd/sandgate", "bench"},
	"nhooyr.io/websocket":              {}, // deprecated on every symbol: coder/websocket is the same under its maintained name
	"github.com/creack/pty":            {"sandbox/agent/guest"},
	"github.com/miekg/dns":             {"sandbox/netjail/resolver"},
	"github.com/hashicorp/yamux":       {"sandbox/agent", "sandbox/agent/guest"},
	"github.com/google/nftables":       {"sandbox/netjail"},
	"github.com/vishvananda/":          {"sandbox/netjail"},
	"github.com/mdlayher/netlink":      {"sandbox/netjail"},
	"github.com/florianl/go-nflog/":    {"sandbox/netjail"},
	"github.com/opencontainers/":       {"sandbox/runsc"},
	"github.com/a-h/templ":             {"views", "views/ui", "handlers"},
	"github.com/coreos/go-systemd/":    {"cmd/sandgate"},
	"github.com/alecthomas/kong":       {"cmd/sandgate"},
	"os/exec":                          {"sandbox/runsc", "sandbox/image", "internal/testenv", "bench"},
	"gvisor.dev/":                      {}, // built as a program in a module of its own
	"github.com/sirupsen/logrus":       {},
	"log":                              {"sandbox/agent/guest"}, // log/slog everywhere; the guest only discards what net/http says
	"github.com/stretchr/testify/mock": {},
}

// testHelpers may import the testing packages in files that are not tests.
var testHelpers = []string{"internal/testenv", "internal/archtest", "internal/e2e", "sandbox/sandboxtest"}

func TestImportsGoOneWay(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test {
			continue // tests may reach for the real store, fakes and helpers
		}
		allowed, known := own[f.pkg]
		if !known {
			t.Errorf("%s: package %s is not in the table of internal/archtest/imports_test.go: say there what it may import", f.path, f.pkg)
			continue
		}
		for _, imp := range f.imports() {
			if dep, ours := strings.CutPrefix(imp, "sandgate/"); ours {
				if !slices.Contains(allowed, dep) && !slices.Contains(allowed, "*") {
					t.Errorf("%s: %s may not import %s", f.path, f.pkg, dep)
				}
				continue
			}
			if why := outsideRule(f.pkg, imp); why != "" {
				t.Errorf("%s: %s", f.path, why)
			}
		}
	}
}

func outsideRule(pkg, imp string) string {
	if imp == "testing" && !slices.Contains(testHelpers, pkg) {
		return "product code may not import testing"
	}
	for prefix, who := range outside {
		hit := imp == prefix || strings.HasSuffix(prefix, "/") && strings.HasPrefix(imp, prefix) ||
			prefix != "log" && strings.HasPrefix(imp, prefix+"/")
		if hit && !slices.Contains(who, pkg) {
			return fmt.Sprintf("%s may not import %s (who may: %v)", pkg, imp, who)
		}
	}
	return ""
}

// acts are the names that do something to a sandbox: for internal/workspace and cmd alone.
var acts = map[string][]string{
	"sandgate/sandbox":       {"Manager", "New", "Runtime", "Records"},
	"sandgate/sandbox/agent": {"Client", "NewClient", "Dialer", "Attachment"},
	"sandgate/sandbox/term":  {"Hub", "NewHub", "AttachFunc"},
}

func TestHandlersActThroughTheService(t *testing.T) {
	declared := map[string]bool{}
	for _, f := range goFiles(t) {
		for name := range f.ast.Scope.Objects {
			declared["sandgate/"+f.pkg+"."+name] = true
		}
	}
	for pkg, names := range acts {
		for _, name := range names {
			if !declared[pkg+"."+name] {
				t.Errorf("%s.%s is not there: the rule about it holds for nothing", pkg, name)
			}
		}
	}
	for _, f := range goFiles(t) {
		if f.test || f.pkg != "handlers" && !strings.HasPrefix(f.pkg, "handlers/") {
			continue
		}
		for _, use := range f.qualified() {
			if slices.Contains(acts[use.importPath], use.name) {
				t.Errorf("%s:%d: handlers reach sandboxes through internal/workspace only, not through %s.%s", f.path, use.line, use.importPath, use.name)
			}
		}
	}
}

// starts are the ways to start a process beside os/exec, which the table above rations.
var starts = map[string][]string{
	"os":      {"StartProcess"},
	"syscall": {"Exec", "ForkExec", "StartProcess"},
}

// Inside a sandbox the agent starts what it is told to; on the host nobody starts anything that way.
func TestOnlyTheAgentStartsProcessesByHand(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || f.pkg == "sandbox/agent/guest" {
			continue
		}
		for _, use := range f.qualified() {
			if slices.Contains(starts[use.importPath], use.name) {
				t.Errorf("%s:%d: %s may not start processes by %s.%s", f.path, use.line, f.pkg, use.importPath, use.name)
			}
		}
	}
}

// knowRunsc may have the word in a string: flags, paths, messages to the operator.
var knowRunsc = []string{"sandbox/runsc", "sandbox/image", "cmd/sandgate", "internal/testenv", "internal/e2e", "internal/archtest", "bench"}

func TestOnlyTheDriverKnowsRunsc(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || f.generated || slices.Contains(knowRunsc, f.pkg) {
			continue
		}
		for _, lit := range f.strings() {
			if strings.Contains(lit.text, "runsc") {
				t.Errorf("%s:%d: only sandbox/runsc knows runsc, but %q is here", f.path, lit.line, lit.text)
			}
		}
	}
}
