// Package archtest owns the rules that the whole tree keeps: who may import whom, what a package comment says, what tests
// may not do, how long a file may be. It must never hold code of the product: it is only tests, and they read source.
package archtest
