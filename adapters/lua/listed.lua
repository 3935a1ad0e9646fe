-- A piece of a list of requests, newest first, in one look: what is added meanwhile moves nothing.
--
-- KEYS: [1] <prefix>:{<tenant>}:requests, or <prefix>:{<tenant>}:call:<x-request-id>
--           sorted set: ids of requests by the time of their acceptance, ms
-- ARGV:
--   [1] since_ms, [2] until_ms   bounds of time, both belong to it
--   [3] count                    ids at the most
--   [4] after_ms, [5] after_id   the place behind which to begin; '' for the beginning
-- Answers {id, ms, id, ms, ...}.

local first = redis.call('ZCOUNT', KEYS[1], '(' .. ARGV[2], '+inf')
if ARGV[5] ~= '' then
  local rank = redis.call('ZREVRANK', KEYS[1], ARGV[5])
  -- What was taken out of the list was its end: nothing stands behind it.
  local behind = rank and rank + 1 or redis.call('ZCOUNT', KEYS[1], ARGV[4], '+inf')
  first = math.max(first, behind)
end
local last = string.format('%.0f', first + tonumber(ARGV[3]) - 1)
local found = redis.call('ZREVRANGE', KEYS[1], string.format('%.0f', first), last, 'WITHSCORES')
local listed = {}
for i = 1, #found, 2 do
  if tonumber(found[i + 1]) >= tonumber(ARGV[1]) then
    listed[i], listed[i + 1] = found[i], found[i + 1]
  end
end
return listed
