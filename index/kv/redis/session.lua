-- Sessions. ARGV[1] says what to do; removing a field that is not there comes
-- first, so that a full server lets the script go on.
local call = redis.call
local what = ARGV[1]
call('HDEL', KEYS[1], '-')
local now = call('TIME')
local ms = string.format('%.0f', tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000))

if what == 'open' then
	-- KEYS: meta. ARGV: what, newest format known, epoch of a new volume or ''.
	local m = call('HMGET', KEYS[1], 'format', 'epoch', 'seq')
	if not m[1] then
		if ARGV[3] == '' then
			return {'none'}
		end
		m = {ARGV[2], ARGV[3], '0'}
		call('HSET', KEYS[1], 'format', m[1], 'epoch', m[2], 'seq', '0', 'session', '0',
			'bytes', '0', 'cut', '0', 'trimmed', '0')
	elseif ARGV[3] ~= '' and m[3] ~= '0' then
		return {'volume'}
	end
	if tonumber(m[1]) > tonumber(ARGV[2]) then
		return {'newer', m[1]}
	end
	return {'ok', m[2], m[3], tostring(call('HINCRBY', KEYS[1], 'session', 1))}
elseif what == 'enter' then
	-- KEYS: sessions, slots. ARGV: what, session.
	call('HSET', KEYS[2], 'e', '1')
	call('HSET', KEYS[1], ARGV[2], ms)
	return {'ok'}
elseif what == 'beat' then
	-- KEYS: sessions, slots. ARGV: what, session.
	if call('HEXISTS', KEYS[2], 'e') == 0 then
		return {'fenced'}
	end
	call('HSET', KEYS[1], ARGV[2], ms)
	return {'ok'}
elseif what == 'end' then
	-- KEYS: sessions, slots. ARGV: what, session, least silence in ms.
	local beat = call('HGET', KEYS[1], ARGV[2])
	if beat and tonumber(ms) - tonumber(beat) < tonumber(ARGV[3]) then
		return {'alive'}
	end
	call('DEL', KEYS[2])
	call('HDEL', KEYS[1], ARGV[2])
	return {'ok'}
elseif what == 'list' then
	-- KEYS: sessions. ARGV: what.
	return {'ok', ms, call('HGETALL', KEYS[1])}
end
-- 'trim'. KEYS: meta, log. ARGV: what, epoch, last seq to go.
local m = call('HMGET', KEYS[1], 'epoch', 'seq', 'bytes', 'trimmed')
if m[1] ~= ARGV[2] then
	return {'epoch', m[2] or '0'}
end
local upto, cut = tonumber(ARGV[3]), m[3]
if upto <= tonumber(m[4]) then
	return {'ok'}
end
if upto >= tonumber(m[2]) then
	upto = tonumber(m[2])
else
	local id = '0-' .. ARGV[3]
	local e = call('XRANGE', KEYS[2], id, id)[1]
	if e then
		cut = e[2][8]
	end
end
call('XTRIM', KEYS[2], 'MINID', '0-' .. string.format('%.0f', upto + 1))
call('HSET', KEYS[1], 'trimmed', string.format('%.0f', upto), 'cut', cut)
return {'ok'}
