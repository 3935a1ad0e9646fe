-- Terminal outcomes of requests: the first one of each stays, outcome and body together.
--
-- KEYS, two for each ending i = 1..n, with the tenant as the hash tag:
--   [2i-1] <prefix>:{<tenant>}:request:<id>   hash: the entry
--   [2i]   <prefix>:{<tenant>}:requests       sorted set: ids by the time of their acceptance
--   On a cluster one call carries the endings of one tenant (one hash tag) only.
-- ARGV:
--   [1] ttl_ms of an ended request's entry   [2] list_ttl_ms, of the list
--   [3] listed_max, ids that a list keeps, the newest
--   then for each ending: [4i] outcome (JSON), [4i+1] '1' with a body, [4i+2] the body or '',
--   [4i+3] when the request arrived, ms
--
-- A request whose acceptance is not noted (or not yet) is listed by when it arrived.

local ttl_ms, list_ttl_ms, listed_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local function list(key, id, arrived_ms)
  redis.call('ZADD', key, 'NX', arrived_ms, id)
  redis.call('ZREMRANGEBYRANK', key, 0, -listed_max - 1)
  redis.call('PEXPIRE', key, list_ttl_ms)
end

for i = 1, #KEYS / 2 do
  local entry = KEYS[2 * i - 1]
  if redis.call('HSETNX', entry, 'ended', ARGV[4 * i]) == 1 then
    if ARGV[4 * i + 1] == '1' then
      redis.call('HSET', entry, 'body', ARGV[4 * i + 2])
    end
    redis.call('PEXPIRE', entry, ttl_ms)
    if redis.call('HEXISTS', entry, 'accepted') == 0 then
      list(KEYS[2 * i], string.match(entry, '[^:]*$'), ARGV[4 * i + 3])
    end
  end
end
return #KEYS / 2
