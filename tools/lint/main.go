// Command lint owns the analyzers that go vet does not run by itself; it is the -vettool of the Makefile, so that results are
// kept in the build cache. It must never rewrite code or know rules about this project: those are in internal/archtest.
package main

import (
	"github.com/polyfloyd/go-errorlint/errorlint"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() {
	// %v where %w is meant, == and type switches on errors that may be wrapped.
	errors := errorlint.NewAnalyzer()
	if err := errors.Flags.Set("errorf", "true"); err != nil {
		panic(err) // the flag is part of the pinned version
	}
	unitchecker.Main(
		errors,
		nilness.Analyzer,
		unusedwrite.Analyzer,
	)
}
