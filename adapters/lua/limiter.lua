-- Charges against limits: all of one charge or nothing of it, over a tenant's limits and its
-- parent's, each charge id at most once; and refunds and settlements of what was charged.
--
-- KEYS, for each item i = 1..n in turn; all of one item have one hash tag, the family's root:
--   <prefix>:{<root>}:limit:<tenant>:<endpoint>         hash: the tenant's counters
--   <prefix>:{<root>}:limit:<parent>:<endpoint>         the parent's, only with levels = 2
--   <prefix>:{<root>}:charge:<tenant>:<endpoint>:<id>   string: what the id was charged
--   On a cluster one call carries the items of one family (one hash tag) only.
-- ARGV:
--   [1] slot_ms, width of a counter       [2] slots, counters in the window, the current one too
--   [3] ttl_ms, of everything written, beyond the time for which it counts
--   [4] now_override_ms, for tests only; "" in service
--   then for each item [4+i], words with blanks between them:
--     c <levels> <requests> <tokens> <weight> <id_ms> <limit> * 4 * levels     charge
--        amounts are weighted; limits: requests/minute, tokens/minute, requests/month,
--        tokens/month, -1 for none, the parent's after the tenant's; id_ms: the id is kept so long
--     r <levels>            refund: the request was certainly not published
--     s <levels> <tokens>   settle: the true tokens, not weighted; -1: the estimate stays
--     m <levels> <month> <requests> <tokens>   restore: so much, weighted, was taken in the month
--        that ends at <month>, at least; levels is 1, and the counters stand for the third key
-- Answers n times, integers:
--   charge: {admission, now, month_end, decisive, used * 4 * levels, wait_ms * 4 * levels}
--     admission  1 charged, 2 charged as much before (takes nothing), 0 no room now,
--                -1 cost > limit
--     now, month_end   ms; the month is a calendar month in UTC
--     decisive   the first limit that refused, counted from 1; 0: none
--     used       after the call
--     wait_ms    only of a refusal: until there is room for this cost, if nobody else takes it;
--                0 there is, -1 never; by TIME, which may be behind what the counters have seen
--   refund, settle: {1} done, {0} no such charge, or settled before
--   restore: {1} done, {0} another month, or as much is counted already
--
-- A hash of counters:
--   head   "<now> <r> <t> <rs> <ts> <month> <rm> <tm>"
--          now    greatest time of a charge, ms; time never goes back: now = max(now, TIME)
--          r, t   requests and tokens in the newest counter, slot floor(now / slot_ms)
--          rs, ts in all counters of the window, the newest too
--          month  its end, ms; rm, tm requests and tokens in it
--   ring   "<slot> <r> <t> ..." the older counters of the window, oldest first
-- The string of a charge: "<until> <settled> <weight> (<slot> <month> <r> <t>)..." one part a
-- charge of the id, each in the counter and the month in which it was taken; until: kept so long.
-- What was charged as much before has an empty part of the first one's: several calls count on it.
--
-- All counters are counted whole, so a window of (slots - 1) * slot_ms, wherever it begins,
-- never holds more than the limit. A refused call writes nothing at all; in particular it
-- does not prolong the life of a counter.

local slot_ms, slots, ttl_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local floor, max = math.floor, math.max
local DAY_MS = 86400000
local HEAD = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'
local HEAD_OUT = '%d %d %d %d %d %d %d %d'
local PAID_OUT, PART_OUT = '%d %d %d', ' %d %d %d %d'

local function server_ms()
  if ARGV[4] ~= '' then
    return tonumber(ARGV[4])
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + floor(tonumber(time[2]) / 1000)
end

-- End of the UTC month that holds a time. Years begin in March, so that leap days come last.
local month_first, month_last = 1, 0

local function month_end(now)
  if month_first <= now and now < month_last then
    return month_last
  end
  local days = floor(now / DAY_MS) + 719468
  local era = floor(days / 146097)
  local day = days - era * 146097
  local year = floor((day - floor(day / 1460) + floor(day / 36524) - floor(day / 146096)) / 365)
  local before = 365 * year + floor(year / 4) - floor(year / 100)
  local month = floor((5 * (day - before) + 2) / 153)
  local first = era * 146097 + before - 719468
  month_first = (first + floor((153 * month + 2) / 5)) * DAY_MS
  if month < 11 then
    month_last = (first + floor((153 * (month + 1) + 2) / 5)) * DAY_MS
  else
    local is_leap = (year + 1) % 4 == 0 and ((year + 1) % 100 ~= 0 or (year + 1) % 400 == 0)
    month_last = month_first + (is_leap and 29 or 28) * DAY_MS
  end
  return month_last
end

-- --- counters: loaded once a call, written once at its end

local loaded, written = {}, {}

local function numbers(text)
  local found = {}
  for number in string.gmatch(text, '%d+') do
    found[#found + 1] = tonumber(number)
  end
  return found
end

local function load(key)
  local c = loaded[key]
  if c then
    return c
  end
  c = {key = key, now = 0, r = 0, t = 0, rs = 0, ts = 0, month = 0, rm = 0, tm = 0}
  local head = redis.call('HGET', key, 'head')
  if head then
    local now, r, t, rs, ts, month, rm, tm = string.match(head, HEAD)
    c.now, c.r, c.t, c.rs, c.ts = tonumber(now), tonumber(r), tonumber(t), tonumber(rs), tonumber(ts)
    c.month, c.rm, c.tm = tonumber(month), tonumber(rm), tonumber(tm)
  else
    c.ring = {}
  end
  loaded[key] = c
  return c
end

local function ring_of(c)
  if not c.ring then
    c.ring = numbers(redis.call('HGET', c.key, 'ring') or '')
  end
  return c.ring
end

local function advance(c, now)
  local before, slot = floor(c.now / slot_ms), floor(now / slot_ms)
  c.now = now
  if slot > before then
    local ring, kept, rs, ts = ring_of(c), {}, 0, 0
    local n = #ring
    if c.r > 0 or c.t > 0 then
      ring[n + 1], ring[n + 2], ring[n + 3] = before, c.r, c.t
    end
    for i = 1, #ring, 3 do
      if ring[i] > slot - slots then
        kept[#kept + 1] = ring[i]
        kept[#kept + 1] = ring[i + 1]
        kept[#kept + 1] = ring[i + 2]
        rs, ts = rs + ring[i + 1], ts + ring[i + 2]
      end
    end
    c.ring, c.r, c.t, c.rs, c.ts, c.is_turned = kept, 0, 0, rs, ts, true
  end
  if now >= c.month then
    c.month, c.rm, c.tm = month_end(now), 0, 0
  end
end

local function touch(c)
  if not c.is_touched then
    c.is_touched = true
    written[#written + 1] = c
  end
end

-- Adds to the counter of a slot and to a month, where they still count; takes away what is there.
local function add(c, slot, month, r, t)
  touch(c)
  if month == c.month then
    c.rm, c.tm = max(0, c.rm + r), max(0, c.tm + t)
  end
  if slot == floor(c.now / slot_ms) then
    r, t = max(r, -c.r), max(t, -c.t)
    c.r, c.t, c.rs, c.ts = c.r + r, c.t + t, c.rs + r, c.ts + t
    return
  end
  local ring = ring_of(c)
  for i = 1, #ring, 3 do
    if ring[i] == slot then
      r, t = max(r, -ring[i + 1]), max(t, -ring[i + 2])
      ring[i + 1], ring[i + 2] = ring[i + 1] + r, ring[i + 2] + t
      c.rs, c.ts, c.is_turned = c.rs + r, c.ts + t, true
      return
    end
  end
end

local function flush()
  for i = 1, #written do
    local c = written[i]
    local head = string.format(HEAD_OUT, c.now, c.r, c.t, c.rs, c.ts, c.month, c.rm, c.tm)
    if c.is_turned then
      local ring = {}
      for k = 1, #c.ring do
        ring[k] = string.format('%d', c.ring[k]) -- not tostring, which rounds large ones
      end
      redis.call('HSET', c.key, 'head', head, 'ring', table.concat(ring, ' '))
    else
      redis.call('HSET', c.key, 'head', head)
    end
    redis.call('PEXPIRE', c.key, string.format('%d', c.month - c.now + ttl_ms))
  end
end

-- --- what an id was charged: {until, settled, weight, slot, month, r, t, slot, ...}

local function read_charge(key, now)
  local text = redis.call('GET', key)
  local paid = text and numbers(text)
  return paid and paid[1] > now and paid or nil
end

local function write_charge(key, keep_ms, paid)
  local text = {string.format(PAID_OUT, paid[1], paid[2], paid[3])}
  for i = 4, #paid, 4 do
    text[#text + 1] = string.format(PART_OUT, paid[i], paid[i + 1], paid[i + 2], paid[i + 3])
  end
  redis.call('SET', key, table.concat(text), 'PX', string.format('%d', keep_ms))
end

-- --- items

local time = server_ms()

-- The counters of an item on its present time, which is the latest that any of them has seen.
local function open(first, levels)
  local counters, now = {}, time
  for level = 1, levels do
    counters[level] = load(KEYS[first + level - 1])
    now = max(now, counters[level].now)
  end
  for level = 1, levels do
    advance(counters[level], now)
  end
  return counters, now
end

-- Until a window that holds too much by `excess` does so no more; `unit`: 1 requests, 2 tokens.
local function window_wait_ms(c, unit, excess)
  local ring = ring_of(c)
  for i = 1, #ring, 3 do
    excess = excess - ring[i + unit]
    if excess <= 0 then
      return (ring[i] + slots) * slot_ms - time
    end
  end
  return (floor(c.now / slot_ms) + slots) * slot_ms - time
end

local function wait_ms(c, limit, kind, cost, more, used)
  if limit < 0 then
    return 0
  end
  if limit < 1 or cost > limit then
    return -1
  end
  if more == 0 or used + more <= limit then
    return 0
  end
  if kind > 2 then
    return c.month - time
  end
  return window_wait_ms(c, kind, used + more - limit)
end

local function answer(admission, counters, now, decisive, waits)
  local out = {admission, now, counters[1].month, decisive}
  for level = 1, #counters do
    local c, n = counters[level], 4 * level
    out[n + 1], out[n + 2], out[n + 3], out[n + 4] = c.rs, c.ts, c.rm, c.tm
  end
  for k = 1, waits and #waits or 0 do
    out[#out + 1] = waits[k]
  end
  return out
end

local function refusal(cost_r, cost_t, limits, counters, more_r, more_t)
  local waits, decisive, never = {}, 0, 0
  local costs, more = {cost_r, cost_t}, {more_r, more_t}
  for level = 1, #counters do
    local c = counters[level]
    local used = {c.rs, c.ts, c.rm, c.tm}
    for kind = 1, 4 do
      local k, unit = 4 * level - 4 + kind, 2 - kind % 2
      local wait = wait_ms(c, limits[k], kind, costs[unit], more[unit], used[kind])
      waits[k] = wait
      if wait ~= 0 and decisive == 0 then
        decisive = k
      end
      if wait < 0 and never == 0 then
        never = k
      end
    end
  end
  return waits, decisive, never
end

-- Whether every limit has room; the usual case, without a table.
local function has_room(r, t, limits, counters, more_r, more_t)
  for level = 1, #counters do
    local c, n = counters[level], 4 * level - 4
    local a, b, d, e = limits[n + 1], limits[n + 2], limits[n + 3], limits[n + 4]
    if (a >= 0 and (a < 1 or r > a or (more_r > 0 and c.rs + more_r > a)))
      or (b >= 0 and (b < 1 or t > b or (more_t > 0 and c.ts + more_t > b)))
      or (d >= 0 and (d < 1 or r > d or (more_r > 0 and c.rm + more_r > d)))
      or (e >= 0 and (e < 1 or t > e or (more_t > 0 and c.tm + more_t > e))) then
      return false
    end
  end
  return true
end

-- Notes that another call counts on what an id was charged, which is then not given back.
local function share(key, now, paid)
  if paid[2] == 0 and #paid == 7 then
    paid[8], paid[9], paid[10], paid[11] = paid[4], paid[5], 0, 0
    write_charge(key, paid[1] - now, paid)
  end
end

-- An id that is new and has room, which is the usual case: one command tells and writes.
local function charge_new(r, t, weight, id_ms, limits, counters, now, key)
  if not has_room(r, t, limits, counters, r, t) then
    return false
  end
  local slot, month = floor(now / slot_ms), counters[1].month
  local text = string.format(PAID_OUT .. PART_OUT, now + id_ms, 0, weight, slot, month, r, t)
  if not redis.call('SET', key, text, 'PX', id_ms, 'NX') then
    return false
  end
  for level = 1, #counters do
    add(counters[level], slot, month, r, t)
  end
  return true
end

local function charge(r, t, weight, id_ms, limits, counters, now, key)
  if charge_new(r, t, weight, id_ms, limits, counters, now, key) then
    return answer(1, counters, now, 0)
  end
  local paid = read_charge(key, now)
  local paid_r, paid_t = 0, 0
  if paid then
    for i = 4, #paid, 4 do
      paid_r, paid_t = paid_r + paid[i + 2], paid_t + paid[i + 3]
    end
  end
  local more_r, more_t = max(0, r - paid_r), max(0, t - paid_t)
  if paid and (paid[2] == 1 or (more_r == 0 and more_t == 0)) then
    share(key, now, paid)
    return answer(2, counters, now, 0)
  end
  if not has_room(r, t, limits, counters, more_r, more_t) then
    local waits, decisive, never = refusal(r, t, limits, counters, more_r, more_t)
    if never > 0 then
      return answer(-1, counters, now, never, waits)
    end
    return answer(0, counters, now, decisive, waits)
  end
  local slot, month = floor(now / slot_ms), counters[1].month
  for level = 1, #counters do
    add(counters[level], slot, month, more_r, more_t)
  end
  paid = paid or {0, 0, weight}
  paid[1] = now + id_ms
  local n = #paid
  paid[n + 1], paid[n + 2], paid[n + 3], paid[n + 4] = slot, month, more_r, more_t
  write_charge(key, id_ms, paid)
  return answer(1, counters, now, 0)
end

-- A charge in parts is not given back: another call counts on it, and the request may be in the log.
local function refund(counters, now, key)
  local paid = read_charge(key, now)
  if not paid or paid[2] == 1 or #paid > 7 then
    return {0}
  end
  for level = 1, #counters do
    add(counters[level], paid[4], paid[5], -paid[6], -paid[7])
  end
  redis.call('DEL', key)
  return {1}
end

local function settle(tokens, counters, now, key)
  local paid = read_charge(key, now)
  if not paid or paid[2] == 1 then
    return {0}
  end
  local more = 0
  if tokens >= 0 then
    more = tokens * paid[3]
    for i = 4, #paid, 4 do
      more = more - paid[i + 3]
    end
  end
  for i = #paid - 3, 4, -4 do -- too much goes back from the last part first
    local part = more < 0 and max(more, -paid[i + 3]) or more
    if part ~= 0 then
      for level = 1, #counters do
        add(counters[level], paid[i], paid[i + 1], 0, part)
      end
    end
    more = more - part
  end
  paid[1], paid[2] = now + ttl_ms, 1
  write_charge(key, ttl_ms, paid)
  return {1}
end

local function restore(c, month, r, t)
  if month ~= c.month or (r <= c.rm and t <= c.tm) then
    return {0}
  end
  touch(c)
  c.rm, c.tm = max(c.rm, r), max(c.tm, t)
  return {1}
end

-- Many charges of a call have the same limits: read once.
local limits_of = {}

local function read_limits(text)
  local limits = limits_of[text]
  if not limits then
    limits = {}
    for number in string.gmatch(text, '%-?%d+') do
      limits[#limits + 1] = tonumber(number)
    end
    limits_of[text] = limits
  end
  return limits
end

local function run(text, first)
  local kind, level, rest = string.match(text, '^(%a) (%d) ?(.*)$')
  local levels = tonumber(level)
  local counters, now = open(first, levels)
  local key = KEYS[first + levels]
  if kind == 'r' then
    return refund(counters, now, key), levels
  end
  if kind == 's' then
    return settle(tonumber(rest), counters, now, key), levels
  end
  if kind == 'm' then
    local month, least_r, least_t = string.match(rest, '^(%d+) (%d+) (%d+)$')
    return restore(counters[1], tonumber(month), tonumber(least_r), tonumber(least_t)), levels
  end
  local r, t, weight, id_ms, limits = string.match(rest, '^(%d+) (%d+) (%d+) (%d+) (.*)$')
  r, t, weight, id_ms = tonumber(r), tonumber(t), tonumber(weight), tonumber(id_ms)
  return charge(r, t, weight, id_ms, read_limits(limits), counters, now, key), levels
end

local answers, first = {}, 1
for i = 1, #ARGV - 4 do
  local found, levels = run(ARGV[4 + i], first)
  answers[i] = found
  first = first + levels + 1
end
flush()
return answers
