//go:build !soak

package audit_test

const eachWrites, kills = 20, 3
