package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
)

var perOp = regexp.MustCompile(`Benchmark\S*\s+\d+\s+([\d.]+) ns/op`)

// auditCost: what intent and outcome add to POST `true`. No server runs without its record, so the record is measured
// alone, by the Go benchmark beside the service, on the real store.
func (b *bench) auditCost() error {
	ns, err := b.benchmark("BenchmarkRecord", "./internal/workspace", 2000)
	if err != nil {
		return err
	}
	b.rows["audit_cost"] = row{Value: round(ns / 1e6), Unit: "ms"}
	return nil
}

// benchmark runs one Go benchmark and gives its nanoseconds an operation.
func (b *bench) benchmark(name, pkg string, times int) (float64, error) {
	cmd := exec.CommandContext(b.ctx, "go", "test", "-run=^$", "-bench=^"+name+"$", fmt.Sprintf("-benchtime=%dx", times), pkg)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	m := perOp.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no figure in %s", out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}
