-- Reads items at one moment, and says which of those that were read before
-- have changed since.
-- KEYS: meta, then the places.
-- ARGV: epoch, least seq, seq of the earlier reads, their number; the earlier
-- ones (4 each), the new ones (3 each).
-- Returns what happened, seq, {number of an earlier item, what it is now, …},
-- {new items}.
local m = call('HMGET', KEYS[1], 'epoch', 'seq')
if m[1] ~= ARGV[1] then
	return {'epoch', m[2] or '0'}
end
if tonumber(m[2]) < tonumber(ARGV[2]) then
	return {'lost', m[2]}
end
local i, changed, new = 5, {}, {}
local old = tonumber(ARGV[4])
if m[2] == ARGV[3] then
	i = i + 4 * old
else
	for j = 1, old do
		local v = fetch(i)
		if not same(i, v) then
			changed[#changed + 1] = j
			changed[#changed + 1] = v
		end
		i = i + 4
	end
end
while i < #ARGV do
	new[#new + 1] = fetch(i)
	i = i + 3
end
return {'ok', m[2], changed, new}
