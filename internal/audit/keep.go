package audit

import (
	"context"
	"time"
)

// Keeping says for how long copies of outputs stay. The chain itself stays for good.
type Keeping struct {
	Age   time.Duration // 0: 30 days
	Bytes int64         // of all copies together; 0: 256 MiB
}

const (
	defaultAge   = 30 * 24 * time.Hour
	defaultBytes = 256 << 20
)

func (k Keeping) withDefaults() Keeping {
	if k.Age == 0 {
		k.Age = defaultAge
	}
	if k.Bytes == 0 {
		k.Bytes = defaultBytes
	}
	return k
}

// Keeping gives what holds.
func (l *Log) Keeping() Keeping { return l.o.Keep }

const (
	indexEvery  = 2 * time.Second
	indexBatch  = 50 // rows in one transaction of the background, which holds writers up
	pruneEvery  = 10 * time.Minute
	verifyEvery = 6 * time.Hour
	// catchUpBatches bounds how many rows somebody who searches waits for; they are larger than those of the background.
	catchUpBatches = 40
	catchUpBatch   = 500
)

// Sizes tells how large the record is.
func (l *Log) Sizes(ctx context.Context) (Sizes, error) { return l.o.Store.AuditSizes(ctx) }

// Tend does what is done beside recording, until ctx ends: it writes copies, makes rows searchable, removes old copies, and
// looks at the whole chain at once and every few hours.
func (l *Log) Tend(ctx context.Context) {
	index, prune, verify := time.NewTicker(indexEvery), time.NewTicker(pruneEvery), time.NewTicker(verifyEvery)
	defer index.Stop()
	defer prune.Stop()
	defer verify.Stop()
	l.look(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.copies.wake:
			l.told(ctx, "keep copies of outputs", l.Flush(ctx))
		case <-index.C:
			l.told(ctx, "keep copies of outputs", l.Flush(ctx)) // what failed before
			l.told(ctx, "make events searchable", l.indexAll(ctx))
		case <-prune.C:
			l.told(ctx, "remove old copies of outputs", l.Prune(ctx))
		case <-verify.C:
			l.look(ctx)
		}
	}
}

func (l *Log) told(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		l.o.Log.Error(what, "cause", err.Error())
	}
}

// look verifies and tells the log.
func (l *Log) look(ctx context.Context) {
	v, err := l.Verify(ctx)
	l.told(ctx, "verify the record", err)
	if err == nil && !v.Holds() {
		l.o.Log.Error("the record does not hold", "bad", max(v.Bad, v.BadCopy), "why", v.Contrary)
	}
}

// indexAll makes everything searchable, in steps that let others write in between.
func (l *Log) indexAll(ctx context.Context) error {
	for ctx.Err() == nil {
		if more, err := l.o.Store.IndexAudit(ctx, indexBatch); err != nil || !more {
			return err
		}
	}
	return ctx.Err()
}

// catchUp makes what is new searchable, for somebody who waits.
func (l *Log) catchUp(ctx context.Context, batches int) error {
	for range batches {
		if more, err := l.o.Store.IndexAudit(ctx, catchUpBatch); err != nil || !more {
			return err
		}
	}
	return nil
}

// Prune removes copies of outputs that are too old or too many.
func (l *Log) Prune(ctx context.Context) error {
	for {
		more, err := l.o.Store.PruneAuditOutputs(ctx, l.o.Now().Add(-l.o.Keep.Age), l.o.Keep.Bytes)
		if err != nil || !more {
			return err
		}
	}
}

// Publish tells the head of the record at once and then every so often, until ctx ends: what is told can be kept where
// nobody of this host reaches.
func (l *Log) Publish(ctx context.Context, every time.Duration, tell func(Head)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		h, err := l.Head(ctx)
		l.told(ctx, "read the head of the record", err)
		if err == nil {
			tell(h)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
