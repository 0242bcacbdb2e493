package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
)

var perOp = regexp.MustCompile(`BenchmarkRecord\S*\s+\d+\s+([\d.]+) ns/op`)

// auditCost: what intent and outcome add to POST `true`. No server runs without its record, so the record is measured
// alone, by the Go benchmark beside the service, on the real store.
func (b *bench) auditCost() error {
	cmd := exec.CommandContext(b.ctx, "go", "test", "-run=^$", "-bench=^BenchmarkRecord$", "-benchtime=2000x", "./internal/workspace")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	m := perOp.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("no figure in %s", out)
	}
	ns, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		return err
	}
	b.rows["audit_cost"] = row{Value: round(ns / 1e6), Unit: "ms"}
	return nil
}
