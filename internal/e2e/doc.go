// Package e2e owns the tests of the whole product from outside: the built server with real sandboxes, a real browser, the real
// SDK. It must never reach into a package of the product: what these tests need to know they see as a user would.
package e2e
