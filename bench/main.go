// Command bench owns the figures of the README: it drives the built server from outside and compares each figure with bare
// runsc, measured in turn in the same run. It must never import the product: it measures what users get.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
)

// row is one line of bench/latest.json. Ratio is value / reference, for a throughput reference / value: smaller is better.
type row struct {
	Value     float64 `json:"value"`
	Unit      string  `json:"unit"`
	Reference float64 `json:"reference,omitempty"`
	Ratio     float64 `json:"ratio,omitempty"`
}

// bench is one run: the product's server and, beside it, bare runsc with the same image and flags.
type bench struct {
	ctx  context.Context
	srv  *server
	bare *bare
	rows map[string]row

	many, burstSize int // how many sandboxes the rows of 500 and of 100 make
}

// termAgainst are the rows whose reference is terminado.
var termAgainst = []string{"term_bulk", "term_echo_p50", "term_echo_p99"}

// measurements in the order of the table; one may give several rows.
var measurements = []struct {
	rows []string
	run  func(*bench) error
}{
	{[]string{"create_cold"}, (*bench).createCold},
	{[]string{"create_warm"}, (*bench).createWarm},
	{[]string{"exec", "exec_p99"}, (*bench).exec},
	{[]string{"exec_32", "exec_32_p99"}, (*bench).exec32},
	{[]string{"resume"}, (*bench).resume},
	{[]string{"fork"}, (*bench).fork},
	{[]string{"burst100", "burst100_failures", "burst100_leftovers"}, (*bench).burst},
	{[]string{"idle_memory"}, (*bench).idleMemory},
	{[]string{"file_get_1g", "file_put_1g", "server_rss_growth_1g"}, (*bench).files},
	{[]string{"audit_cost"}, (*bench).auditCost},
	{[]string{"net_download"}, (*bench).download},
	{[]string{"policy_change_500"}, (*bench).policyChange},
	{termAgainst, (*bench).terminals},
	{[]string{"term_viewers20", "term_reattach"}, (*bench).termViewers},
	{[]string{"term_memory", "term_idle_cpu_200"}, (*bench).termIdle},
	{[]string{"list500_ms", "idle_cpu_500"}, (*bench).manyIdle},
}

func main() {
	if os.Getenv(inside) == "internet" {
		fmt.Fprintln(os.Stderr, "bench: the internet:", serveInternet())
		os.Exit(1)
	}
	o := parseOptions()
	if o.wants(termAgainst) && os.Getenv(inside) == "" {
		if err := installTerminado(); err != nil {
			fmt.Fprintln(os.Stderr, "bench: terminado:", err)
			os.Exit(1)
		}
	}
	if err := enterNamespace(); err != nil {
		fmt.Fprintln(os.Stderr, "bench: a network namespace:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are what the command line says.
type options struct {
	out         string
	only        []string
	many, burst int
}

func parseOptions() (o options) {
	flag.StringVar(&o.out, "out", "", "file to write the rows to, as JSON; rows that are not measured now are kept")
	only := flag.String("only", "", "comma-separated names of rows; all by default")
	flag.IntVar(&o.many, "many", 500, "how many sandboxes the rows of 500 make; with another number, for trying out, the file is left alone")
	flag.IntVar(&o.burst, "burst", burst, "likewise how many that of 100 makes")
	flag.Parse()
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	return o
}

// wants says whether one of the rows is to be measured.
func (o options) wants(rows []string) bool {
	return o.only == nil || slices.ContainsFunc(rows, func(row string) bool { return slices.Contains(o.only, row) })
}

func run(ctx context.Context, o options) (err error) {
	b := &bench{ctx: ctx, rows: map[string]row{}, many: o.many, burstSize: o.burst}
	w, err := newWorld(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if b.srv, err = startServer(ctx, "--pool", "0"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.srv.close()) }()
	if b.bare, err = newBare(ctx, b.srv, w); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.bare.close()) }()

	for _, m := range measurements {
		if !o.wants(m.rows) {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring", strings.Join(m.rows, ", "))
		if err := m.run(b); err != nil {
			return fmt.Errorf("%s: %w", m.rows[0], err)
		}
	}
	b.print()
	if o.out == "" || flagGiven("many") || flagGiven("burst") {
		return nil
	}
	return b.write(o.out)
}

func flagGiven(name string) (given bool) {
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}

func (b *bench) print() {
	w := tabwriter.NewWriter(os.Stdout, 2, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "name\tours\treference\tunit\tratio\t")
	for _, m := range measurements {
		for _, name := range m.rows {
			r, measured := b.rows[name]
			if !measured {
				continue
			}
			reference, ratio := "", ""
			if r.Reference != 0 {
				reference, ratio = fmt.Sprintf("%.2f", r.Reference), fmt.Sprintf("%.2f", r.Ratio)
			}
			_, _ = fmt.Fprintf(w, "%s\t%.2f\t%s\t%s\t%s\t\n", name, r.Value, reference, r.Unit, ratio)
		}
	}
	_ = w.Flush()
}

// write merges the rows into what the file holds.
func (b *bench) write(path string) error {
	all := map[string]row{}
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(old, &all); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for name, r := range b.rows {
		all[name] = r
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// speed keeps a row of two medians where larger is better.
func (b *bench) speed(name, unit string, ours, reference []float64) {
	v, r := median(ours), median(reference)
	b.rows[name] = row{Value: round(v), Unit: unit, Reference: round(r), Ratio: round(r / v)}
}

// pair keeps a row of two medians where smaller is better.
func (b *bench) pair(name, unit string, ours, reference []float64) {
	v, r := median(ours), median(reference)
	b.rows[name] = row{Value: round(v), Unit: unit, Reference: round(r), Ratio: round(v / r)}
}
