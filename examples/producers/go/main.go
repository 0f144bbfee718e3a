// Command producer appends the events of a run to a Runwright server, from an engine that is not Runwright. It needs the
// standard library only.
//
//	RUNWRIGHT_TOKEN=... go run . http://127.0.0.1:8484 nightly-42
//	go run . --keys ../key-vectors.json          prints the keys of the test vectors
package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
)

// KeyFields are the six fields by which an event is identified.
type KeyFields struct {
	RunID            string  `json:"runId"`
	StepID           *string `json:"stepId,omitempty"`
	LogicalAttemptID int     `json:"logicalAttemptId"`
	EventType        string  `json:"eventType"`
	PlanID           string  `json:"planId"`
	PlanVersion      string  `json:"planVersion"`
}

// IdempotencyKey returns the key: the same six fields are the same event, whoever sends it and however often.
func (f KeyFields) IdempotencyKey() string {
	step := "RUN"
	if f.StepID != nil {
		step = *f.StepID
	}
	preimage := fmt.Sprintf("%s|%s|%d|%s|%s|%s", f.RunID, step, f.LogicalAttemptID, f.EventType, f.PlanID, f.PlanVersion)
	digest := sha256.Sum256([]byte(preimage))
	return hex.EncodeToString(digest[:])
}

// Event is an event as it is appended.
type Event struct {
	KeyFields
	EventID         string         `json:"eventId"` // a new one for each event; the same one for each retry of it
	TenantID        string         `json:"tenantId"`
	ProjectID       string         `json:"projectId"`
	EnvironmentID   string         `json:"environmentId"`
	EngineAttemptID int            `json:"engineAttemptId"` // raised when this engine restarts the attempt; not in the key
	IdempotencyKey  string         `json:"idempotencyKey"`
	EmittedAt       string         `json:"emittedAt"`
	Payload         map[string]any `json:"payload,omitempty"`
}

// Receipt is the answer to one event.
type Receipt struct {
	Status string `json:"status"` // appended, duplicate, refused or not_attempted
	RunSeq int    `json:"runSeq,omitempty"`
	Code   string `json:"code,omitempty"`
	Detail string `json:"detail,omitempty"`
}

func newUUID() string {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err)
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func newEvent(runID, eventType, stepID string, payload map[string]any) Event {
	fields := KeyFields{RunID: runID, LogicalAttemptID: 1, EventType: eventType, PlanID: "nightly", PlanVersion: "1"}
	if stepID != "" {
		fields.StepID = &stepID
	}
	return Event{
		KeyFields: fields, EventID: newUUID(), TenantID: "default", ProjectID: "default", EnvironmentID: "default",
		EngineAttemptID: 1, IdempotencyKey: fields.IdempotencyKey(),
		EmittedAt: time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), Payload: payload,
	}
}

var errRefused = errors.New("refused")

// appendEvents sends events until their receipts are here: whatever happened to an earlier request, sending them again
// is right.
func appendEvents(server, token string, events []Event) ([]Receipt, error) {
	body, err := json.Marshal(events)
	if err != nil {
		return nil, err
	}
	for pause := 200 * time.Millisecond; ; pause = min(pause*2, 5*time.Second) {
		receipts, retryAfter, err := post(server, token, body)
		if err == nil || errors.Is(err, errRefused) {
			return receipts, err
		}
		time.Sleep(max(pause, retryAfter))
	}
}

func post(server, token string, body []byte) ([]Receipt, time.Duration, error) {
	request, err := http.NewRequest(http.MethodPost, server+"/v1/events", bytes.NewReader(body))
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %v", errRefused, err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, 0, err
	}
	if response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests {
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return nil, time.Duration(seconds) * time.Second, fmt.Errorf("%s", response.Status)
	}
	if response.StatusCode >= 400 {
		return nil, 0, fmt.Errorf("%w: %s", errRefused, text)
	}
	var answer struct {
		Results []Receipt `json:"results"`
	}
	return answer.Results, 0, json.Unmarshal(text, &answer)
}

func printKeys(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var vectors []KeyFields
	if err := json.Unmarshal(text, &vectors); err != nil {
		return err
	}
	for _, vector := range vectors {
		fmt.Println(vector.IdempotencyKey())
	}
	return nil
}

func produce(server, runID string) error {
	token := os.Getenv("RUNWRIGHT_TOKEN")
	events := []Event{
		newEvent(runID, "RunQueued", "", nil),
		newEvent(runID, "RunStarted", "", nil),
		newEvent(runID, "StepStarted", "extract", nil),
		newEvent(runID, "StepCompleted", "extract", map[string]any{"result": map[string]any{"rows": 3, "place": "Zürich"}}),
		newEvent(runID, "RunCompleted", "", nil),
	}
	receipts, err := appendEvents(server, token, events)
	if err != nil {
		return err
	}
	for i, receipt := range receipts {
		line, _ := json.Marshal(struct {
			EventType string `json:"eventType"`
			Receipt
		}{events[i].EventType, receipt})
		fmt.Println(string(line))
		if receipt.RunSeq == 0 {
			err = fmt.Errorf("%s was not appended", events[i].EventType)
		}
	}
	return err
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "Usage: RUNWRIGHT_TOKEN=... producer SERVER RUN_ID")
		os.Exit(2)
	}
	run := produce
	if os.Args[1] == "--keys" {
		run = func(_, file string) error { return printKeys(file) }
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
