package workspace

import (
	"context"
	"sync"

	"sandgate/auth"
	"sandgate/sandbox"
	"sandgate/sandbox/idle"
)

// CheapHashes makes tests fast; the parameters of the product are tested in package auth.
func CheapHashes(s *Service) {
	s.people.hash = auth.NewHasher(auth.HashParams{MemoryKiB: 64, Time: 1, Threads: 1})
}

// WatchCount tells how many streams are guarded.
func WatchCount(s *Service) int {
	s.people.guard.mu.Lock()
	defer s.people.guard.mu.Unlock()
	return len(s.people.guard.watches)
}

// SampleOnce reads every meter once.
func SampleOnce(s *Service) { s.sample(context.Background()) }

// SweepOnce judges everything that is due, and waits for what comes of it.
func SweepOnce(s *Service, jumps *idle.Jumps, clock idle.Clock) {
	var running sync.WaitGroup
	s.sweep(context.Background(), jumps, clock, make(chan struct{}, judgesAtOnce), &running)
	running.Wait()
}

// CloseDenied ends the window of denials of a sandbox, as its timer does.
func CloseDenied(s *Service, id sandbox.ID) { s.closeDenied(id, false) }

// ExpireSnapshots deletes what nobody used for long.
func ExpireSnapshots(s *Service) { s.expireSnapshots(context.Background()) }

// ExpireRecordings deletes what is older or more than policies keep.
func ExpireRecordings(s *Service) { s.expireRecordings(context.Background()) }
