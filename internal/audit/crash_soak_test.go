//go:build soak

package audit_test

const kills = 20
