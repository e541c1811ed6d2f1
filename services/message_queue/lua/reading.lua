-- Reads the messages of a state for list.lua, in order, slice by slice.
--
-- A script blocks all other clients, so one call reads a bounded number of entries and bytes, and the next call
-- continues from there. Entries are read in blocks and records in bulk. The script needs allow-oom, because it creates
-- records for messages of other producers, so that operators can act on every message that is listed.

local SLICE_COST = 700 -- cost of one call, in entries
local CREATE_RECORD_COST = 5 -- cost of an entry without a record
local RETURN_COST = 3 -- additional cost of an entry that is returned in full
local FIRST_READ_COUNT, MAX_READ_COUNT = 2, 16 -- entries per read of a stream; each may have 1 MiB
local HOUR_MS = 3600 * 1000

local spent, read_entries, shown_bytes = 0, 0, 0

local function is_budget_spent()
  return spent >= SLICE_COST or handled_bytes >= MAX_BYTES
end

-- Returns true if no more rows may be returned, even of entries that are already read.
local function is_full()
  return spent >= SLICE_COST or shown_bytes >= MAX_BYTES
end

-- Order: by entry id, then by the rank of the stream

local function is_later_id(one, other)
  local ms, other_ms = string.sub(one, 1, 14), string.sub(other, 1, 14)
  if string.byte(ms, 14) ~= 45 or string.byte(other_ms, 14) ~= 45 then -- not a 13-digit timestamp and a dash
    return sortable(one) > sortable(other)
  end
  if ms ~= other_ms then
    return ms > other_ms
  end
  return #one > #other or #one == #other and one > other
end

local function is_later(one, other)
  if one.sid == other.sid then
    return one.rank > other.rank
  end
  return is_later_id(one.sid, other.sid)
end

local function is_earlier(one, other)
  return is_later(other, one)
end

-- Sources: each reads items {sid, stream, rank, data, id} of one stream, or of the deadlines

local function items_of(source, entries)
  local items = {}
  for i, entry in ipairs(entries) do
    local data, id = data_of(entry[2])
    items[i] = { sid = entry[1], stream = source.stream, rank = source.rank, data = data, id = identity(data, id) }
    source.bytes = source.bytes + (data and #data or 0)
  end
  source.entries, read_entries = source.entries + #entries, read_entries + #entries
  return items
end

local function stream_source(stream, rank, is_up, from, to)
  local source = { stream = stream, rank = rank, items = {}, position = 1, bytes = 0, entries = 0 }
  function source.read(count)
    local answer = redis.pcall(is_up and 'XRANGE' or 'XREVRANGE', stream, from, to, 'COUNT', count)
    local entries = answer.err and {} or answer -- a key of another type has no messages
    if #entries > 0 then
      from = '(' .. entries[#entries][1]
    end
    return items_of(source, entries)
  end
  return source
end

-- Returns a bound of parked messages: `from` or `to` of a range of entry ids.
local function parked_bound(bound, priority, is_lower)
  if bound == '-' or bound == '+' then
    return is_lower and '[' .. priority .. ':' or '(' .. priority .. ';'
  end
  local is_open = string.sub(bound, 1, 1) == '('
  local member = priority .. ':' .. sortable(is_open and string.sub(bound, 2) or bound)
  return '(' .. member .. (is_open == is_lower and ';' or '') -- a member continues with ':', which is before ';'
end

-- Messages of a type that the group has passed over, as a part of the stream of their priority.
local function parked_source(kind)
  return function(stream, rank, is_up, from, to)
    local source = { stream = stream, rank = rank, items = {}, position = 1, bytes = 0, entries = 0 }
    local first, last = parked_bound(from, rank, is_up), parked_bound(to, rank, not is_up)
    local direction = is_up and {} or { 'REV' }
    function source.read(count)
      local entries = {}
      local members = redis.call('ZRANGE', PARKED .. kind, first, last, 'BYLEX', 'LIMIT', 0, count, unpack(direction))
      for i, member in ipairs(members) do
        local ms, sequence = string.match(member, '^%d+:0*(%d+)%-0*(%d+):')
        entries[i] = redis.call('XRANGE', stream, ms .. '-' .. sequence, ms .. '-' .. sequence)[1]
          or { ms .. '-' .. sequence, {} }
        first = '(' .. member
      end
      spent = spent + #entries -- each is read by itself
      return items_of(source, entries)
    end
    return source
  end
end

-- Messages in processing, by deadline. The cursor has a deadline and how many items with it are left: those that were
-- passed may be gone by the next slice. So no item is skipped; one may be read twice if others with its deadline leave.
local function processing_source(is_up, cursor)
  local source = { rank = 0, items = {}, position = 1, bytes = 0, entries = 0 }
  local deadline, left = string.match(cursor, '^(%d+)%-(%d+)/0$')
  local passed = deadline and math.max(redis.call('ZCOUNT', DEADLINES, deadline, deadline) - left, 0) or 0
  local first, last = is_up and '-inf' or '+inf', is_up and '+inf' or '-inf'
  local direction = is_up and {} or { 'REV' }
  function source.read(count)
    local answer = redis.call('ZRANGE', DEADLINES, deadline or first, last, 'BYSCORE', 'LIMIT', passed, count,
      'WITHSCORES', unpack(direction))
    local items = {}
    for i = 1, #answer, 2 do
      local score = answer[i + 1]
      passed = score == deadline and passed + 1 or 1
      deadline = score
      items[#items + 1] = { id = answer[i], rank = 0, deadline = score, passed = passed }
    end
    read_entries = read_entries + #items
    return items
  end
  return source
end

-- Returns a lower bound of the entry ids of messages created at `since` or later: a message is added to a stream after
-- its creation. Allows for an hour of clock skew of other producers.
local function id_before(since)
  local ms = since and since * 1000 - HOUR_MS or 0
  return string.format('%.0f-0', math.max(math.min(ms, 1e18), 0))
end

local function later_id(one, other)
  return is_later_id(one, other) and one or other
end

-- Returns the source of the part of a stream after `bound` that earlier slices have not read; nil if there is none.
local function part_of(stream, rank, order, cursor, bound, source_of)
  local sid, ended_rank = string.match(cursor, '^(%d+-%d+)/(%d+)$')
  sid, ended_rank = sid and sortable(sid) and sid, tonumber(ended_rank)
  if not sid then
    return order == 'oldest' and source_of(stream, rank, true, '(' .. bound, '+')
      or source_of(stream, rank, false, '+', '(' .. bound)
  elseif order == 'oldest' then
    local is_left = rank > ended_rank and is_later_id(sid, bound)
    local from = is_left and sid or '(' .. later_id(sid, bound)
    return source_of(stream, rank, true, from, '+')
  elseif order == 'newest' then
    return source_of(stream, rank, false, rank < ended_rank and sid or '(' .. sid, '(' .. bound)
  end
  local is_over = order == 'highest' and rank > ended_rank or order == 'lowest' and rank < ended_rank
  if is_over then
    return nil
  end
  return source_of(stream, rank, false, rank == ended_rank and '(' .. sid or '+', '(' .. bound)
end

-- Returns groups of sources: groups are read one after another, the sources of a group are merged.
local function sources_of(state, order, cursor, filter)
  local since = id_before(filter.since)
  if state == 'processing' then
    return { { processing_source(order == 'oldest', cursor) } }
  elseif STREAMS_BY_STATE[state] then
    return { { part_of(STREAMS_BY_STATE[state], 0, order, cursor, since, stream_source) } }
  end
  local groups, all = {}, {}
  for priority = 0, HIGHEST_PRIORITY do
    if not filter.priority or filter.priority == priority then
      local stream, sources = stream_of(priority), {}
      local unread = later_id((last_delivered(stream)), since)
      sources[1] = part_of(stream, priority, order, cursor, unread, stream_source)
      for kind in pairs(pauses()) do
        if not filter.type or filter.type == kind then
          sources[#sources + 1] = part_of(stream, priority, order, cursor, since, parked_source(kind))
        end
      end
      for _, source in ipairs(sources) do
        all[#all + 1] = source
      end
      if #sources > 0 then
        table.insert(groups, order == 'lowest' and #groups + 1 or 1, sources)
      end
    end
  end
  return (order == 'newest' or order == 'oldest') and { all } or groups
end

-- Blocks: the next items in order, merged from the sources of a group

local function refill(source, most)
  local average = math.max(source.bytes / math.max(source.entries, 1), 1)
  local fitting = math.floor((MAX_BYTES - handled_bytes) / average)
  local count = math.max(1, math.min(source.count or FIRST_READ_COUNT, most, fitting))
  source.items, source.position = source.read(count), 1
  source.is_done = #source.items < count
  source.count = MAX_READ_COUNT
end

-- Takes the items of a source up to the horizon; after it, an item of another source may come first.
local function take(source, horizon, comes_first, block)
  local items, position = source.items, source.position
  while position <= #items and (not horizon or items[position] == horizon or comes_first(items[position], horizon)) do
    block[#block + 1] = items[position]
    position = position + 1
  end
  source.position = position
end

-- Returns the next items in order, and the item at which they end; nil after the last block.
local function block_of(sources, comes_first)
  local most, horizon = math.max(16, math.floor(SLICE_COST / 4 / #sources)), nil
  for _, source in ipairs(sources) do
    if source.position > #source.items and not source.is_done then
      refill(source, most)
    end
    local reached = not source.is_done and source.items[#source.items]
    if reached and (not horizon or comes_first(reached, horizon)) then
      horizon = reached
    end
  end
  if #sources == 1 then
    sources[1].position = #sources[1].items + 1
    return sources[1].items, horizon
  end
  local block = {}
  for _, source in ipairs(sources) do
    take(source, horizon, comes_first, block)
  end
  table.sort(block, comes_first)
  return block, horizon
end

-- Counts the bytes of the items that a slice handles. What it only reads to know the order, such as a large message of
-- another priority, is not counted: the slice would end after two small messages, and so would each one after it.
local function count_bytes(block)
  for _, item in ipairs(block) do
    handled_bytes = handled_bytes + (item.data and #item.data or 0)
  end
end

local function cursor_at(item)
  if item.deadline then
    local left = redis.call('ZCOUNT', DEADLINES, item.deadline, item.deadline) - item.passed
    return string.format('%.0f-%d/0', math.max(item.deadline, 0), left)
  end
  return item.sid .. '/' .. item.rank
end

-- Returns a function that returns the next block, and the cursor after it or '' at the end.
local function blocks(state, order, cursor, filter)
  local groups, number = sources_of(state, order, cursor, filter), 1
  local comes_first = order == 'oldest' and is_earlier or is_later
  return function()
    while groups[number] do
      local sources = groups[number]
      local block, horizon = block_of(sources, comes_first)
      if not horizon then
        number = number + 1
      end
      if #block > 0 then
        local next_group = groups[number]
        spent = spent + #block
        count_bytes(block)
        return block, horizon and cursor_at(horizon) or next_group and '0-0/' .. sources[1].rank or ''
      end
    end
    return {}, ''
  end
end

-- Reads the records of items in bulk.
local function read_records(items)
  for first = 1, #items, 500 do
    local ids = {}
    for i = first, math.min(first + 499, #items) do
      ids[#ids + 1] = items[i].id or ''
    end
    for i, text in ipairs(redis.call('HMGET', RECORDS, unpack(ids))) do
      items[first + i - 1].text = ids[i] ~= '' and text
    end
  end
end

-- Creates the record of an item that another program has added, and returns it.
local function add_record(item, state)
  spent = spent + CREATE_RECORD_COST
  local id, record = create_record(item.stream, item.sid, item.data)
  if id then
    if state == 'main' then
      index(id, record)
    end
  else -- it is dead-lettered when a consumer receives it
    id = undecodable_id(item.stream, item.sid)
    record = validated({ stream = item.stream, sid = item.sid, priority = priority_of(item.stream),
      created_at = string.match(item.sid, '^%d+') / 1000, undecodable = true })
  end
  save(id, record)
  item.id = id
  return record
end

-- Reads the record of an item and, if it is wanted, its entry; read_records() must have read the text of the record.
-- Returns true if the message is there.
local function read_item(item, state, is_entry_wanted)
  if state == 'processing' then
    local record = item.record or item.text and record_in(item.text) or {}
    item.record, item.stream, item.sid = record, record.stream, record.sid
    if is_entry_wanted and not item.data and record.sid then
      item.data = entry_at(record.stream, record.sid)
    end
    return item.data or not is_entry_wanted and record.sid
  elseif item.data and not item.record then
    item.record = item.text and record_at(item.text, item.stream, item.sid, item.data) or add_record(item, state)
  end
  return item.data
end

-- Filters

-- Returns the texts that a filter searches for, in lower case; nil without a search.
local function lower_texts(texts)
  for i, one in ipairs(texts or {}) do
    texts[i] = string.lower(one)
  end
  return texts
end

local function contains_any(text, needles)
  text = string.lower(text)
  for _, needle in ipairs(needles) do
    if string.find(text, needle, 1, true) then
      return true
    end
  end
  return false
end

-- Returns true if the undecoded texts already prove that an item does not match. They prove nothing if they contain
-- escapes, or if the record may belong to another entry.
local function is_certain_mismatch(item, filter)
  if not item.text or not string.find(item.text, item.sid or '', 1, true) then
    return false
  end
  local about = is_location(item.text) and item.data or item.text -- the text that contains the type
  if string.find(about, '\\', 1, true) then
    return false
  end
  if filter.type and not string.find(about, '"' .. filter.type .. '"', 1, true) then
    return true
  end
  return filter.search and item.data and not contains_any(item.text, filter.search)
    and not contains_any(item.data, filter.search) and not contains_any(item.id, filter.search)
end

-- Searches the payload only, not the members around it.
local function contains(item, needles)
  local record, _, before = item.record, string.find(item.data, '"payload":', 1, true)
  local payload = string.sub(item.data, (before or 0) + 1, #item.data - (record.added or 0))
  return contains_any(payload, needles) or contains_any(item.id, needles) or contains_any(record.type, needles)
    or contains_any(record.last_error or '', needles)
end

-- Returns true if an item whose record was read matches.
local function is_match(item, filter, state)
  if is_certain_mismatch(item, filter) or not read_item(item, state, filter.search) then
    return false
  end
  local record = item.record
  return (not filter.type or record.type == filter.type)
    and (not filter.priority or record.priority == filter.priority)
    and (not filter.attempts or record.attempt_count == filter.attempts)
    and (not filter.since or record.created_at >= filter.since)
    and (not filter['until'] or record.created_at <= filter['until'])
    and (not filter.search or contains(item, filter.search))
end
