package tgemu_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/gotd/td/tg"

	"tgfs/tests/tgemu"
)

// ask sends one request to the control port and decodes the answer into v.
func ask(t testing.TB, s *tgemu.Server, method, path, body string, want int, v any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.ControlAddr()+path, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	raw, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	if a.StatusCode != want {
		t.Errorf("%s %s %s: status %d, want %d: %s", method, path, body, a.StatusCode, want, raw)
	}
	if v != nil {
		if err := json.Unmarshal(raw, v); err != nil {
			t.Errorf("%s %s: %v in %s", method, path, err, raw)
		}
	}
}

func TestControl(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2, Control: "127.0.0.1:0"})
	a, b := dial(t, s, 0), dial(t, s, 1)
	id := a.post(noise(1 << 20))
	d := a.document(id)
	post := func(path, body string) { t.Helper(); ask(t, s, "POST", path, body, 200, nil) }

	post("/faults", `{"kind":"flood_wait","bot":0,"method":"","seconds":30,"nth":0,"count":1}`)
	_, err := b.UpdatesGetState(b.ctx())
	if err != nil {
		t.Errorf("the other bot: %v", err)
	}
	_, err = a.UpdatesGetState(a.ctx())
	refused(t, "by HTTP", err, "FLOOD_WAIT_30")
	post("/time", `{"add":"30s"}`)
	if _, err = a.UpdatesGetState(a.ctx()); err != nil {
		t.Errorf("after the wait: %v", err)
	}
	post("/faults", `{"kind":"internal","count":-1}`) // no bot: all of them
	_, err = b.UpdatesGetState(b.ctx())
	refused(t, "any bot", err, "RPC_CALL_FAIL")
	var list []tgemu.Fault
	ask(t, s, "GET", "/faults", "", 200, &list)
	if len(list) != 1 || list[0].Kind != tgemu.Internal || list[0].Bot != tgemu.AnyBot {
		t.Errorf("pending faults = %+v", list)
	}
	ask(t, s, "DELETE", "/faults", "", 200, nil)
	if _, err = b.UpdatesGetState(b.ctx()); err != nil {
		t.Errorf("after DELETE /faults: %v", err)
	}

	var st map[string]any
	ask(t, s, "GET", "/stats", "", 200, &st)
	for _, k := range []string{"messages", "uploads", "upload_parts", "get_file_calls", "bytes_up", "bytes_down", "flood_waits", "waits_violated", "dup_parts", "max_uploads"} {
		if _, ok := st[k]; !ok {
			t.Errorf("stats lack %q", k)
		}
	}
	if st["messages"] != 1.0 || st["bytes_up"] != float64(1<<20) || st["flood_waits"] != 1.0 {
		t.Errorf("stats: messages %v, bytes up %v, flood waits %v", st["messages"], st["bytes_up"], st["flood_waits"])
	}
	bots := st["bots"].([]any)
	if n := bots[0].(map[string]any)["upload_parts"]; n != 2.0 {
		t.Errorf("first bot's parts = %v, want 2", n)
	}
	if m := bots[0].(map[string]any)["methods"].(map[string]any)["messages.sendMedia"]; m == nil {
		t.Error("first bot's methods lack messages.sendMedia")
	}

	post("/references/expire", "")
	_, err = a.get(d, 0, 1024)
	refused(t, "expired by HTTP", err, "FILE_REFERENCE_EXPIRED")
	post("/documents/flip", `{"id":1,"offset":5}`)
	post("/messages/edit", `{"id":1,"caption":"new"}`)
	if m := a.message(id).(*tg.Message); m.Message != "new" {
		t.Errorf("caption = %q", m.Message)
	}
	post("/members", `{"bot":1,"in":true,"rights":{"delete":true}}`)
	refused(t, "without the right to post", b.text(1), "CHAT_WRITE_FORBIDDEN")
	var ms []tgemu.Message
	ask(t, s, "GET", "/messages", "", 200, &ms)
	if len(ms) != 1 || ms[0].ID != id || ms[0].Size != 1<<20 || ms[0].Caption != "new" {
		t.Errorf("messages = %+v", ms)
	}
	post("/link", `{"bot":0,"latency":"150ms"}`)
	begin := time.Now()
	a.channel()
	if d := time.Since(begin); d < 150*time.Millisecond {
		t.Errorf("a call took %v with 150 ms of latency", d)
	}
	post("/link", `{"latency":"0s","bandwidth":"4MiB"}`)
	post("/limits", `{"posts_per_minute":1}`)
	post("/rules", `{"delete_old":true,"reference_ttl":"1h"}`)
	d = a.document(id)
	post("/time", `{"add":"61m"}`)
	_, err = a.get(d, 0, 1024)
	refused(t, "rules by HTTP", err, "FILE_REFERENCE_EXPIRED")
	post("/documents/move", `{"bot":0,"dc":4}`)
	if d := a.document(id); d.DCID != 4 {
		t.Errorf("document in DC %d, want 4", d.DCID)
	}
	post("/messages/delete", `{"ids":[1]}`)
	if _, ok := a.message(id).(*tg.MessageEmpty); !ok {
		t.Error("message is still there")
	}
	post("/bots/deactivate", `{"bot":1,"on":true}`)
	_, err = b.UpdatesGetState(b.ctx())
	refused(t, "deactivated by HTTP", err, "USER_DEACTIVATED")
	post("/sessions/revoke", `{"bot":0}`)
	_, err = a.UpdatesGetState(a.ctx())
	refused(t, "revoked by HTTP", err, "SESSION_REVOKED")
	post("/bots/revoke-token", `{"bot":0,"on":true}`)
	_, err = a.client.Auth().Bot(a.ctx(), s.Token(0))
	refused(t, "token revoked by HTTP", err, "ACCESS_TOKEN_INVALID")
	post("/connections/drop", "")
	post("/keys/forget", "")

	for _, x := range []struct{ path, body string }{
		{"/faults", `{"kind":"nonsense"}`},
		{"/faults", `{"kind":"internal","unknown":1}`},
		{"/faults", `{`},
		{"/link", `{"bandwidth":"fast"}`},
		{"/link", `{"bot":9}`},
		{"/sessions/revoke", `{"bot":-7}`},
		{"/messages/delete", `{"channel":5,"ids":[1]}`},
		{"/documents/move", `{"bot":0,"dc":9}`},
		{"/time", `{"add":"soon"}`},
	} {
		var e map[string]string
		ask(t, s, "POST", x.path, x.body, 400, &e)
		if e["error"] == "" {
			t.Errorf("POST %s %s: no reason given", x.path, x.body)
		}
	}
}
