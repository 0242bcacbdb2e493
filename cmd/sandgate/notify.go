package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// What systemd is told; without it (no NOTIFY_SOCKET) all of this does nothing.

func notifyReady() { _, _ = daemon.SdNotify(false, daemon.SdNotifyReady) }

func notifyStopping() { _, _ = daemon.SdNotify(false, daemon.SdNotifyStopping) }

// feedWatchdog says twice in the watchdog's time that the server is well, until ctx ends: well is one that reads its own
// database within that time.
func feedWatchdog(ctx context.Context, well func(context.Context) error, logger *slog.Logger) {
	within, err := daemon.SdWatchdogEnabled(false)
	if err != nil || within <= 0 {
		return
	}
	tick := time.NewTicker(within / 2)
	defer tick.Stop()
	for {
		check, cancel := context.WithTimeout(ctx, within/2)
		err := well(check)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			logger.Error("not well: the watchdog is not told otherwise", "cause", err.Error())
		default:
			_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
