-- Commits, if nothing that was read has changed, and once.
-- KEYS: meta, log, slots, then the places.
-- ARGV: 1 epoch, 2 least seq, 3 slot, 4 number of the commit, 5 the numbers
-- that the slot may hold, as ,A,B, ; 6 flags, 7 bound of the log in bytes,
-- 8 number of reads, 9 redo of records, 10 keys of counters in the log's form;
-- then the reads (4 each) and the writes:
--   S k v          set a record with an empty sort key
--   D k            remove it
--   Z k key m r    set a record of a sorted partition; r: the read that saw
--                  what is there now, 0 when none did
--   X k key r      remove it
--   A k f a        add to a counter
--   M k f a b z    a counter x becomes max(x+a, b), one that is not there z
--   N k f n        a counter becomes n
--   C k f          remove a counter
-- Flags: f it frees memory and must work on a full server; r an earlier try of
-- this commit may be under way still.
local m = call('HMGET', KEYS[1], 'epoch', 'seq', 'bytes', 'cut')
if m[1] ~= ARGV[1] then
	return {'epoch', m[2] or '0'}
end
if tonumber(m[2]) < tonumber(ARGV[2]) then
	return {'lost', m[2]}
end
local x = call('HMGET', KEYS[3], 'e', ARGV[3])
if not x[1] then
	return {'fenced', m[2]}
end
local last, at = string.match(x[2] or ':', '^(%d*):(.*)$')
if last == ARGV[4] then
	-- This commit was decided, and the answer was lost.
	if at == 'x' then
		return {'refused', m[2]}
	end
	return {'ok', at}
end
if not string.find(ARGV[5], ',' .. last .. ',', 1, true) then
	return {'lost', m[2]}
end

local frees = string.find(ARGV[6], 'f', 1, true)
local i, seen, bad = 11, {}, {}
for j = 1, tonumber(ARGV[8]) do
	local v = fetch(i)
	if not same(i, v) then
		bad[#bad + 1] = j
		bad[#bad + 1] = v
	end
	seen[j] = v
	i = i + 4
end
if #bad > 0 then
	if string.find(ARGV[6], 'r', 1, true) then
		-- The earlier try must not find that everything fits again.
		call('HDEL', KEYS[3], ARGV[3])
		call('HSET', KEYS[3], ARGV[3], ARGV[4] .. ':x')
	end
	return {'conflict', m[2], bad}
end

-- From here on nothing may fail. A full server refuses a script at its first
-- write, if that one may take memory, and lets it go on otherwise.
local seq = string.format('%.0f', tonumber(m[2]) + 1)
if frees then
	call('HDEL', KEYS[3], ARGV[3])
end
call('HSET', KEYS[3], ARGV[3], ARGV[4] .. ':' .. seq)

local nums = {}

-- Numbers of Lua are exact only up to 2^53: larger ones are compared as text.
local function less(a, b)
	local na, nb = string.byte(a) == 45, string.byte(b) == 45
	if na ~= nb then
		return na
	end
	if na then
		a, b = string.sub(b, 2), string.sub(a, 2)
	end
	if #a ~= #b then
		return #a < #b
	end
	return a < b
end

local function add(key, f, a)
	local n = redis.pcall('HINCRBY', key, f, a)
	if type(n) == 'number' and n > -9007199254740992 and n < 9007199254740992 then
		return string.format('%.0f', n)
	end
	if type(n) == 'table' then
		-- It would overflow: it stays at the end.
		n = string.byte(a) == 45 and '-9223372036854775808' or '9223372036854775807'
		call('HSET', key, f, n)
		return n
	end
	return call('HGET', key, f)
end

while i <= #ARGV do
	local op, key, a = ARGV[i], KEYS[tonumber(ARGV[i + 1])], ARGV[i + 2]
	if op == 'S' then
		call('SET', key, a)
		i = i + 3
	elseif op == 'D' then
		call('DEL', key)
		i = i + 2
	elseif op == 'Z' or op == 'X' then
		local new = op == 'Z' and ARGV[i + 3] or nil
		local r = tonumber(ARGV[i + (new and 4 or 3)])
		local old
		if r > 0 then
			old = seen[r]
		else
			old = call('ZRANGEBYLEX', key, '[' .. a .. '\0', '(' .. a .. '\1', 'LIMIT', 0, 1)[1]
		end
		if old and old ~= new then
			call('ZREM', key, old)
		end
		if new and old ~= new then
			call('ZADD', key, 0, new)
		end
		i = i + (new and 5 or 4)
	elseif op == 'A' then
		nums[#nums + 1] = add(key, a, ARGV[i + 3])
		i = i + 4
	elseif op == 'M' then
		local n = call('HGET', key, a)
		if not n then
			n = ARGV[i + 5]
			call('HSET', key, a, n)
		else
			if ARGV[i + 3] ~= '0' then
				n = add(key, a, ARGV[i + 3])
			end
			if less(n, ARGV[i + 4]) then
				n = ARGV[i + 4]
				call('HSET', key, a, n)
			end
		end
		nums[#nums + 1] = n
		i = i + 6
	elseif op == 'N' then
		call('HSET', key, a, ARGV[i + 3])
		nums[#nums + 1] = ARGV[i + 3]
		i = i + 4
	else
		call('HDEL', key, a)
		i = i + 3
	end
end

-- b counts the bytes of the log from its beginning: the difference of two
-- entries is what lies between them.
local values = table.concat(nums, ' ')
local total = tonumber(m[3]) + #ARGV[9] + #ARGV[10] + #values + 64
local bytes = string.format('%.0f', total)
call('XADD', KEYS[2], '0-' .. seq, 'r', ARGV[9], 'k', ARGV[10], 'n', values, 'b', bytes)
call('HSET', KEYS[1], 'seq', seq, 'bytes', bytes)

local limit, cut, trimmed = tonumber(ARGV[7]), tonumber(m[4]), nil
if limit >= 0 and total - cut > limit then
	for _, e in ipairs(call('XRANGE', KEYS[2], '-', '+', 'COUNT', 16)) do
		local id = string.match(e[1], '-(%d+)$')
		if total - cut <= limit or id == seq then
			break
		end
		trimmed, cut = id, tonumber(e[2][8])
	end
	if trimmed then
		call('XTRIM', KEYS[2], 'MINID', '0-' .. string.format('%.0f', tonumber(trimmed) + 1))
		call('HSET', KEYS[1], 'trimmed', trimmed, 'cut', string.format('%.0f', cut))
	end
end
return {'ok', seq}
