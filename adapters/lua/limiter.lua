-- Charges against limits: all of one charge or nothing of it, each charge id at most once. The
-- same id at a higher cost is charged the difference, so that nobody pays for little and gets much.
--
-- KEYS, two for each charge i = 1..n, all with the tenant as the hash tag:
--   [2i-1] <prefix>:{<tenant>}:limit:<endpoint>   hash: the counters
--   [2i]   <prefix>:{<tenant>}:charge:<endpoint>:<id>   string: this charge was taken, and its cost
--   On a cluster one call carries the charges of one tenant (one hash tag) only.
-- ARGV:
--   [1] slot_ms, width of a counter       [2] slots, counters in the window, the current one too
--   [3] ttl_ms, of everything written     [4] now_override_ms, for tests only; "" in service
--   then for each charge: [2i+3] cost >= 1, [2i+4] limit
-- Answers n times {admission, used, retry_ms}:
--   admission  1 charged, 2 charged as much before (takes nothing), 0 no room now,
--              -1 cost > limit
--   used       units in the window after the call
--   retry_ms   until there is room for this cost, if nobody else takes it; 0 unless refused
--
-- The hash:
--   now      greatest time of a charge, ms; time never goes back: now = max(now, TIME)
--   r<p>     weighted requests in the counter at ring place p = slot mod slots,
--            where slot = floor(time / slot_ms)
--   Room is left for t<p> (tokens on the same ring) and for month, rm, tm (id of the UTC
--   calendar month, its requests and tokens; ttl_ms then reaches to the end of the month).
-- The charge's string is "<slot> <cost>": all that was taken for it, and the counter of the last
-- part. It counts as long as that counter does. A refund or settlement has to name its counter.
--
-- All counters are counted whole, so a window of (slots - 1) * slot_ms, wherever it begins,
-- never holds more than the limit. A refused call writes nothing at all; in particular it
-- does not prolong the life of a counter.

local slot_ms, slots, ttl_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local function whole(number)
  return string.format('%.0f', number)
end

local function server_ms()
  if ARGV[4] ~= '' then
    return tonumber(ARGV[4])
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local fields = {'now'}
for place = 0, slots - 1 do
  fields[#fields + 1] = 'r' .. place
end

-- Counts by slot, oldest first: counts[k] belongs to slot newest - slots + k.
local function window(values, newest)
  local counts, used = {}, 0
  local stored = values[1] and math.floor(tonumber(values[1]) / slot_ms)
  for k = 1, slots do
    local slot = newest - slots + k
    local count = 0
    if stored and slot <= stored and slot > stored - slots then
      count = tonumber(values[2 + slot % slots] or '0') or 0
    end
    counts[k] = count
    used = used + count
  end
  return counts, used
end

-- What was paid for a charge before, and where it is forgotten: counts[k].
local function paid_before(marker, newest)
  local stored = redis.call('GET', marker)
  if not stored then
    return 0, 0
  end
  local slot, cost = string.match(stored, '^(%d+) (%d+)$')
  local k = tonumber(slot) - newest + slots
  if k < 1 then
    return 0, 0
  end
  return tonumber(cost), k
end

local function wait_ms(counts, excess, newest, now, paid, forgotten)
  for k = 1, slots do
    excess = excess - counts[k]
    if k == forgotten then
      excess = excess + paid
    end
    if excess <= 0 then
      return (newest + k) * slot_ms - now
    end
  end
  return slots * slot_ms
end

local function take(key, counts, newest, now, cost)
  local write = {'now', whole(now)}
  counts[slots] = counts[slots] + cost
  for k = 1, slots do
    write[#write + 1] = 'r' .. whole((newest - slots + k) % slots)
    write[#write + 1] = whole(counts[k])
  end
  redis.call('HSET', key, unpack(write))
  redis.call('PEXPIRE', key, ttl_ms)
end

local function charge(key, marker, cost, limit, time)
  local values = redis.call('HMGET', key, unpack(fields))
  local now = math.max(time, tonumber(values[1] or '0'))
  local newest = math.floor(now / slot_ms)
  local counts, used = window(values, newest)
  local paid, forgotten = paid_before(marker, newest)
  if cost <= paid then
    return {2, used, 0}
  end
  if limit < 1 or cost > limit then
    return {-1, used, 0}
  end
  local more = cost - paid
  if used + more > limit then
    return {0, used, wait_ms(counts, used + more - limit, newest, now, paid, forgotten)}
  end
  take(key, counts, newest, now, more)
  redis.call('SET', marker, whole(newest) .. ' ' .. whole(cost), 'PX', ttl_ms)
  return {1, used + more, 0}
end

local time = server_ms()
local answers = {}
for i = 1, #KEYS / 2 do
  local cost, limit = tonumber(ARGV[2 * i + 3]), tonumber(ARGV[2 * i + 4])
  answers[i] = charge(KEYS[2 * i - 1], KEYS[2 * i], cost, limit, time)
end
return answers
