-- What the scripts share. ARGV has items of what was read, or is to be read:
-- type, index in KEYS, argument; and of what was read, what it was then.
--   g          a record with an empty sort key; was: its version, '' for none
--   z KEY      a record of a sorted partition;  was: the member, '' for none
--   h FIELD    a counter;                       was: the number, '' for none
--   rN FROM    N members from one on;           was: their digest
local call = redis.call

local function fetch(i)
	local t, key, a = ARGV[i], KEYS[tonumber(ARGV[i + 1])], ARGV[i + 2]
	if t == 'g' then
		return call('GET', key)
	elseif t == 'h' then
		return call('HGET', key, a)
	elseif t == 'z' then
		return call('ZRANGEBYLEX', key, '[' .. a .. '\0', '(' .. a .. '\1', 'LIMIT', 0, 1)[1] or false
	end
	return call('ZRANGEBYLEX', key, '[' .. a, '+', 'LIMIT', 0, string.sub(t, 2))
end

local function same(i, v)
	local t, was = ARGV[i], ARGV[i + 3]
	if t == 'g' then
		return (v == false) == (was == '') and (v == false or string.sub(v, 1, #was) == was)
	elseif t == 'h' or t == 'z' then
		return (v or '') == was
	end
	local b = {}
	for _, m in ipairs(v) do
		b[#b + 1] = #m .. ':' .. m
	end
	return redis.sha1hex(table.concat(b)) == was
end
