package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"sandgate/internal/audit"
	"sandgate/internal/webhook"
)

// tellFlags say who is told of what happens, and how long copies of outputs stay.
type tellFlags struct {
	WebhookURL        string        `help:"Address that is told the head of the record, and of requests for approval." name:"webhook-url" env:"SANDGATE_WEBHOOK_URL" placeholder:"URL"`
	WebhookSecretFile string        `help:"File with the secret that signs what is told." env:"SANDGATE_WEBHOOK_SECRET_FILE" placeholder:"FILE"`
	WebhookAllow      []string      `help:"Networks that the webhook may be in although they are not public, comma-separated." env:"SANDGATE_WEBHOOK_ALLOW" placeholder:"CIDR"`
	HeadEvery         time.Duration `help:"How often the head of the record is told." env:"SANDGATE_HEAD_EVERY" default:"1m" placeholder:"DURATION"`
	OutputAge         time.Duration `help:"For how long copies of what commands printed are kept." env:"SANDGATE_OUTPUT_AGE" default:"720h" placeholder:"DURATION"`
	OutputMB          int64         `help:"MiB that all of these copies may take together." env:"SANDGATE_OUTPUT_MB" name:"output-mb" default:"256" placeholder:"MB"`
}

func (c *tellFlags) keeping() (audit.Keeping, error) {
	if c.OutputAge < time.Minute || c.OutputMB < 1 || c.HeadEvery < time.Second {
		return audit.Keeping{}, errors.New("--output-age must be a minute or more, --output-mb 1 or more, --head-every a second or more")
	}
	return audit.Keeping{Age: c.OutputAge, Bytes: c.OutputMB << 20}, nil
}

// newHook makes what tells; nil where nobody is to be told.
func (c *tellFlags) newHook(inst string, logger *slog.Logger) (*webhook.Hook, error) {
	if c.WebhookURL == "" {
		if c.WebhookSecretFile != "" || len(c.WebhookAllow) > 0 {
			return nil, errors.New("--webhook-secret-file and --webhook-allow need --webhook-url")
		}
		return nil, nil
	}
	if c.WebhookSecretFile == "" {
		return nil, errors.New("--webhook-url needs --webhook-secret-file: what is told is signed")
	}
	b, err := os.ReadFile(c.WebhookSecretFile)
	if err != nil {
		return nil, fmt.Errorf("--webhook-secret-file: %w", err)
	}
	if fi, err := os.Stat(c.WebhookSecretFile); err == nil && fi.Mode().Perm()&0o077 != 0 {
		logger.Warn("others can read the webhook's secret; chmod 600 keeps it", "file", c.WebhookSecretFile)
	}
	secret, err := webhook.Secret(b)
	if err != nil {
		return nil, fmt.Errorf("--webhook-secret-file: %w", err)
	}
	allow := make([]netip.Prefix, len(c.WebhookAllow))
	for i, text := range c.WebhookAllow {
		if allow[i], err = netip.ParsePrefix(text); err != nil {
			return nil, fmt.Errorf("--webhook-allow: %w", err)
		}
	}
	hook, err := webhook.New(webhook.Options{URL: c.WebhookURL, Secret: secret, Allow: allow, Installation: inst, Log: logger, Now: time.Now})
	if err != nil {
		return nil, fmt.Errorf("--webhook-url: %w", err)
	}
	return hook, nil
}

// headTold is the data of an audit.head.
type headTold struct {
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"`
}

func (ps *parts) tellHead(h audit.Head) {
	ps.hook.Send(webhook.Event{Type: "audit.head", Key: "audit.head", Data: headTold{Seq: h.Seq, Hash: hex.EncodeToString(h.Hash)}})
}

// lastWords bounds what is told and written when everything else has ended.
const lastWords = 5 * time.Second

// lastRecord keeps the last copies, and tells the last head.
func (ps *parts) lastRecord(logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	if err := ps.audit.Flush(ctx); err != nil {
		logger.Error("keep copies of outputs", "cause", err.Error())
	}
	if h, err := ps.audit.Head(ctx); err == nil {
		ps.tellHead(h)
	}
	ps.hook.Flush(ctx)
}
