package tgemu_test

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/gotd/td/tg"

	"tgfs/tests/tgemu"
)

func TestPartRules(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	big := func(id int64, part, total int, n int) error {
		_, err := a.UploadSaveBigFilePart(a.ctx(), &tg.UploadSaveBigFilePartRequest{FileID: id, FilePart: part, FileTotalParts: total, Bytes: make([]byte, n)})
		return err
	}
	small := func(id int64, part, n int) error {
		_, err := a.UploadSaveFilePart(a.ctx(), &tg.UploadSaveFilePartRequest{FileID: id, FilePart: part, Bytes: make([]byte, n)})
		return err
	}
	for _, x := range []struct {
		name string
		err  error
		want string
	}{
		{"negative part", big(1, -1, 2, 1024), "FILE_PART_INVALID"},
		{"part 4000", big(1, 4000, -1, 1024), "FILE_PART_INVALID"},
		{"4001 parts", big(1, 0, 4001, 1024), "FILE_PARTS_INVALID"},
		{"no parts", big(1, 0, 0, 1024), "FILE_PARTS_INVALID"},
		{"part beyond the total", big(1, 2, 2, 1024), "FILE_PARTS_INVALID"},
		{"empty", big(1, 0, 2, 0), "FILE_PART_EMPTY"},
		{"more than 512 KiB", big(1, 0, 2, 513<<10), "FILE_PART_TOO_BIG"},
		{"not whole KiB", big(1, 0, 2, 1000), "FILE_PART_SIZE_INVALID"},
		{"does not divide 512 KiB", big(1, 0, 2, 3<<10), "FILE_PART_SIZE_INVALID"},
		{"small file beyond 10 MiB", small(1, 20, 512<<10), "FILE_PART_TOO_BIG"},
		{"small part empty", small(1, 0, 0), "FILE_PART_EMPTY"},
	} {
		refused(t, x.name, x.err, x.want)
	}

	for i, n := range []int{64 << 10, 64 << 10} {
		if err := big(2, i, 4, n); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, "another size", big(2, 2, 4, 32<<10), "FILE_PART_SIZE_CHANGED")
	refused(t, "another total", big(2, 2, 5, 64<<10), "FILE_PARTS_INVALID")
	refused(t, "last part longer", big(2, 3, 4, 65<<10), "FILE_PART_SIZE_INVALID")
	refused(t, "small part of a big file", small(2, 2, 64<<10), "FILE_PART_INVALID")
	if err := big(2, 3, 4, 17); err != nil {
		t.Fatalf("a short last part: %v", err)
	}
	send := func(f tg.InputFileClass) error { _, err := a.send(f, "", number()); return err }
	refused(t, "hole", send(&tg.InputFileBig{ID: 2, Parts: 4}), "FILE_PART_2_MISSING")
	refused(t, "wrong count", send(&tg.InputFileBig{ID: 2, Parts: 3}), "FILE_PARTS_INVALID")
	refused(t, "as a small file", send(&tg.InputFile{ID: 2, Parts: 4}), "FILE_PARTS_INVALID")
	refused(t, "never uploaded", send(&tg.InputFileBig{ID: 3, Parts: 4}), "FILE_PART_0_MISSING")
	if err := big(2, 2, 4, 64<<10); err != nil {
		t.Fatal(err)
	}
	if err := send(&tg.InputFileBig{ID: 2, Parts: 4}); err != nil {
		t.Errorf("complete file: %v", err)
	}
	refused(t, "parts that a message took", send(&tg.InputFileBig{ID: 2, Parts: 4}), "FILE_PART_0_MISSING")
}

func TestSmallFile(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	for i := range 2 {
		if _, err := a.UploadSaveFilePart(a.ctx(), &tg.UploadSaveFilePartRequest{FileID: 8, FilePart: i, Bytes: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := a.send(&tg.InputFile{ID: 8, Parts: 2}, "", number())
	refused(t, "parts of 1000 bytes", err, "FILE_PART_SIZE_INVALID")
	data := noise(300<<10 + 11)
	const size = 128 << 10
	n := 0
	for off := 0; off < len(data); off += size {
		if _, err := a.UploadSaveFilePart(a.ctx(), &tg.UploadSaveFilePartRequest{FileID: 9, FilePart: n, Bytes: data[off:min(len(data), off+size)]}); err != nil {
			t.Fatal(err)
		}
		n++
	}
	sum := md5.Sum(data)
	_, err = a.send(&tg.InputFile{ID: 9, Parts: n, MD5Checksum: strings.Repeat("0", 32)}, "", number())
	refused(t, "wrong checksum", err, "MD5_CHECKSUM_INVALID")
	id, err := a.send(&tg.InputFile{ID: 9, Parts: n, Name: "pack.bin", MD5Checksum: hex.EncodeToString(sum[:])}, "", number())
	if err != nil {
		t.Fatal(err)
	}
	d := a.document(id)
	if got := a.download(d); !bytes.Equal(got, data) {
		t.Error("bytes differ")
	}
	if len(d.Attributes) != 1 || d.Attributes[0].(*tg.DocumentAttributeFilename).FileName != "pack.bin" {
		t.Errorf("attributes = %v, want the file's name", d.Attributes)
	}
}

func TestPartsBelongToTheirBotAndExpire(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2})
	a, b := dial(t, s, 0), dial(t, s, 1)
	f, err := a.upload(5, noise(1000), 512<<10)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.send(f, "", number())
	refused(t, "another bot's parts", err, "FILE_PART_0_MISSING")
	s.AddTime(7 * time.Hour)
	_, err = a.send(f, "", number())
	refused(t, "parts after 7 h", err, "FILE_PART_0_MISSING")
}

func TestGetFileRules(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2})
	a, b := dial(t, s, 0), dial(t, s, 1)
	data := noise(2<<20 + 100)
	id := a.post(data)
	d := a.document(id)
	get := func(precise bool, off int64, limit int, l tg.InputFileLocationClass) ([]byte, error) {
		r, err := a.UploadGetFile(a.ctx(), &tg.UploadGetFileRequest{Precise: precise, Location: l, Offset: off, Limit: limit})
		if err != nil {
			return nil, err
		}
		return r.(*tg.UploadFile).Bytes, nil
	}
	other, noHash, noRef := location(b.document(id)), location(d), location(d)
	noHash.AccessHash++
	noRef.FileReference = nil
	hisRef := location(d)
	hisRef.FileReference = other.FileReference
	for _, x := range []struct {
		name    string
		precise bool
		off     int64
		limit   int
		loc     tg.InputFileLocationClass
		want    string
	}{
		{"offset not 4 KiB", false, 1024, 4096, location(d), "OFFSET_INVALID"},
		{"limit not 4 KiB", false, 0, 1024, location(d), "LIMIT_INVALID"},
		{"limit does not divide 1 MiB", false, 0, 12 << 10, location(d), "LIMIT_INVALID"},
		{"precise offset not 1 KiB", true, 100, 1024, location(d), "OFFSET_INVALID"},
		{"precise limit not 1 KiB", true, 0, 100, location(d), "LIMIT_INVALID"},
		{"no limit", true, 0, 0, location(d), "LIMIT_INVALID"},
		{"more than 1 MiB", true, 0, 1<<20 + 1024, location(d), "LIMIT_INVALID"},
		{"across a 1 MiB line", true, 1<<20 - 1024, 2048, location(d), "LIMIT_INVALID"},
		{"negative offset", true, -1024, 1024, location(d), "OFFSET_INVALID"},
		{"another bot's location", true, 0, 1024, other, "FILE_ID_INVALID"},
		{"another bot's reference", true, 0, 1024, hisRef, "FILE_REFERENCE_INVALID"},
		{"wrong hash", true, 0, 1024, noHash, "FILE_ID_INVALID"},
		{"no reference", true, 0, 1024, noRef, "FILE_REFERENCE_EMPTY"},
		{"a photo", true, 0, 1024, &tg.InputPhotoFileLocation{}, "LOCATION_INVALID"},
	} {
		_, err := get(x.precise, x.off, x.limit, x.loc)
		refused(t, x.name, err, x.want)
	}
	for _, x := range []struct {
		off  int64
		n    int
		want []byte
	}{
		{1 << 20, 1 << 20, data[1<<20 : 2<<20]},
		{512<<10 - 1024, 2048, data[512<<10-1024 : 512<<10+1024]}, // across two parts
		{2 << 20, 1 << 20, data[2<<20:]},                          // the end is short
		{3 << 20, 1024, nil},                                      // past it is empty
	} {
		if got, err := get(true, x.off, x.n, location(d)); err != nil || !bytes.Equal(got, x.want) {
			t.Errorf("getFile(%d, %d): %d bytes, %v; want the document's %d", x.off, x.n, len(got), err, len(x.want))
		}
	}
}

func TestOddPartSizes(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	for _, size := range []int{1 << 10, 32 << 10} {
		data := noise(100<<10 + 3)
		f, err := a.upload(number(), data, size)
		if err != nil {
			t.Fatal(err)
		}
		id, err := a.send(f, "", number())
		if err != nil {
			t.Fatal(err)
		}
		if got := a.download(a.document(id)); !bytes.Equal(got, data) {
			t.Errorf("parts of %d: bytes differ", size)
		}
	}
}

func TestReferencesExpire(t *testing.T) {
	s := start(t, tgemu.Config{Rules: tgemu.Rules{ReferenceTTL: time.Hour}})
	a := dial(t, s, 0)
	id := a.post(noise(5000))
	for _, x := range []struct {
		name   string
		expire func()
	}{
		{"by age", func() { s.AddTime(61 * time.Minute) }},
		{"all at once", func() {
			if err := s.ExpireReferences(); err != nil {
				t.Error(err)
			}
		}},
	} {
		d := a.document(id)
		if _, err := a.get(d, 0, 1024); err != nil {
			t.Fatal(err)
		}
		x.expire()
		_, err := a.get(d, 0, 1024)
		refused(t, x.name, err, "FILE_REFERENCE_EXPIRED")
		if _, err := a.get(a.document(id), 0, 1024); err != nil {
			t.Errorf("%s: a fresh reference: %v", x.name, err)
		}
	}
	d := a.document(id)
	if err := s.DeleteMessages(0, id); err != nil {
		t.Fatal(err)
	}
	_, err := a.get(d, 0, 1024)
	refused(t, "of a deleted message", err, "FILE_REFERENCE_EXPIRED")
}

func TestCaptionsAndRandomIDs(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	file := func() tg.InputFileClass {
		f, err := a.upload(number(), noise(100), 512<<10)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	_, err := a.send(file(), strings.Repeat("x", 1025), number())
	refused(t, "1025 characters", err, "MEDIA_CAPTION_TOO_LONG")
	_, err = a.send(file(), strings.Repeat("😀", 513), number())
	refused(t, "1026 UTF-16 units", err, "MEDIA_CAPTION_TOO_LONG")
	_, err = a.send(file(), "", 0)
	refused(t, "no random id", err, "RANDOM_ID_EMPTY")
	id, err := a.send(file(), strings.Repeat("x", 1024), 42)
	if err != nil {
		t.Fatalf("1024 characters: %v", err)
	}
	again, err := a.send(&tg.InputFileBig{ID: 1, Parts: 1}, "again", 42)
	if err != nil || again != id {
		t.Errorf("same random id again: message %d, %v; want %d", again, err, id)
	}
	if st := s.Stats(); st.Messages != 1 || st.DupPosts != 1 {
		t.Errorf("%d messages, %d duplicates; want 1, 1", st.Messages, st.DupPosts)
	}
	s.SetRules(tgemu.Rules{RandomDuplicate: true})
	_, err = a.send(file(), "", 42)
	refused(t, "same random id under the other rule", err, "RANDOM_ID_DUPLICATE")
	_, err = a.MessagesSendMessage(a.ctx(), &tg.MessagesSendMessageRequest{Peer: a.peer(), Message: strings.Repeat("x", 4097), RandomID: number()})
	refused(t, "long text", err, "MESSAGE_TOO_LONG")
}

func TestDeleteRules(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2})
	a, b := dial(t, s, 0), dial(t, s, 1)
	id := a.post(noise(10))
	del := func(x *bot, ids ...int) error {
		_, err := x.ChannelsDeleteMessages(x.ctx(), &tg.ChannelsDeleteMessagesRequest{Channel: x.channel(), ID: ids})
		return err
	}
	refused(t, "101 ids", del(a, make([]int, 101)...), "LIMIT_INVALID")
	member(t, s, 1, tgemu.Membership{In: true, Rights: tgemu.Rights{Post: true}})
	refused(t, "another's message without the right", del(b, id), "MESSAGE_DELETE_FORBIDDEN")
	s.AddTime(49 * time.Hour)
	refused(t, "after 49 h", del(a, id), "MESSAGE_DELETE_FORBIDDEN")
	s.SetRules(tgemu.Rules{DeleteOld: true})
	if err := del(a, id); err != nil {
		t.Errorf("after 49 h, allowed: %v", err)
	}
	if err := del(a, id); err != nil {
		t.Errorf("what is gone: %v", err)
	}
	ids := make([]tg.InputMessageClass, 101)
	for i := range ids {
		ids[i] = &tg.InputMessageID{ID: i + 1}
	}
	_, err := a.ChannelsGetMessages(a.ctx(), &tg.ChannelsGetMessagesRequest{Channel: a.channel(), ID: ids})
	refused(t, "getMessages of 101", err, "LIMIT_INVALID")
}

func TestEditRules(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2})
	a, b := dial(t, s, 0), dial(t, s, 1)
	id := a.post(noise(10))
	before := a.document(id)
	edit := func(x *bot, id int, text string, data []byte) error {
		r := &tg.MessagesEditMessageRequest{Peer: x.peer(), ID: id}
		if text != "" {
			r.SetMessage(text)
		}
		if data != nil {
			f, err := x.upload(number(), data, 512<<10)
			if err != nil {
				return err
			}
			r.SetMedia(document(f))
		}
		_, err := x.MessagesEditMessage(x.ctx(), r)
		return err
	}
	refused(t, "no such message", edit(a, 999, "x", nil), "MESSAGE_ID_INVALID")
	refused(t, "nothing changes", edit(a, id, "caption", nil), "MESSAGE_NOT_MODIFIED")
	refused(t, "long caption", edit(a, id, strings.Repeat("x", 1025), nil), "MEDIA_CAPTION_TOO_LONG")
	member(t, s, 1, tgemu.Membership{In: true, Rights: tgemu.Rights{Post: true}})
	refused(t, "another's without the right", edit(b, id, "x", nil), "MESSAGE_AUTHOR_REQUIRED")
	member(t, s, 0, tgemu.Membership{In: true, Rights: tgemu.Rights{Post: true}})
	if err := edit(a, id, "own", nil); err != nil {
		t.Errorf("own message without the edit right: %v", err)
	}
	s.AddTime(49 * time.Hour)
	refused(t, "own, after 49 h", edit(a, id, "late", nil), "MESSAGE_EDIT_TIME_EXPIRED")
	member(t, s, 1, tgemu.Membership{In: true, Rights: tgemu.FullRights})
	if err := edit(b, id, "dead", []byte{7}); err != nil {
		t.Fatalf("an old message of another bot, with the right: %v", err)
	}
	m := a.message(id).(*tg.Message)
	if d := a.document(id); m.Message != "dead" || d.Size != 1 || d.ID == before.ID || m.EditDate == 0 {
		t.Errorf("after the edit: caption %q, size %d, edited %d", m.Message, d.Size, m.EditDate)
	}
	if st := s.Stats(); st.LiveBytes != 1 {
		t.Errorf("live bytes = %d, want 1: the old document is replaced", st.LiveBytes)
	}
}

func TestAlbum(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	item := func(data []byte) tg.InputSingleMedia {
		f, err := a.upload(number(), data, 512<<10)
		if err != nil {
			t.Fatal(err)
		}
		m, err := a.MessagesUploadMedia(a.ctx(), &tg.MessagesUploadMediaRequest{Peer: a.peer(), Media: document(f)})
		if err != nil {
			t.Fatal(err)
		}
		d := m.(*tg.MessageMediaDocument).Document.(*tg.Document)
		return tg.InputSingleMedia{RandomID: number(), Media: &tg.InputMediaDocument{ID: &tg.InputDocument{ID: d.ID, AccessHash: d.AccessHash, FileReference: d.FileReference}}}
	}
	send := func(ms ...tg.InputSingleMedia) (tg.UpdatesClass, error) {
		return a.MessagesSendMultiMedia(a.ctx(), &tg.MessagesSendMultiMediaRequest{Peer: a.peer(), MultiMedia: ms})
	}
	one := item([]byte("one"))
	_, err := send(make11(one)...)
	refused(t, "11 items", err, "MULTI_MEDIA_TOO_LONG")
	_, err = send(tg.InputSingleMedia{RandomID: 1, Media: document(&tg.InputFileBig{ID: 1, Parts: 1})})
	refused(t, "a file that was not uploaded as media first", err, "MEDIA_INVALID")
	two := item([]byte("two!"))
	u, err := send(one, two)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		m    tg.InputSingleMedia
		size int64
	}{{one, 3}, {two, 4}} {
		id, err := messageID(u, x.m.RandomID)
		if err != nil {
			t.Fatal(err)
		}
		if d := a.document(id); d.Size != x.size {
			t.Errorf("message %d: size %d, want %d", id, d.Size, x.size)
		}
	}
}

func make11(m tg.InputSingleMedia) []tg.InputSingleMedia {
	l := make([]tg.InputSingleMedia, 11)
	for i := range l {
		l[i] = m
		l[i].RandomID = number()
	}
	return l
}

func member(t testing.TB, s *tgemu.Server, bot int, m tgemu.Membership) {
	t.Helper()
	if err := s.SetMembership(0, bot, m); err != nil {
		t.Fatal(err)
	}
}
