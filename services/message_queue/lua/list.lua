#!lua flags=allow-oom
-- Reads a slice of the messages in a state, in natural order: the messages, or only their number, ids or failures.
--
-- KEYS[1]  queue name
-- ARGV     number of priorities, state, order ('newest' or 'oldest' first, in processing by deadline; in main also 'highest'
--          or 'lowest' priority first, then newest), cursor of the previous slice ('' for the first), filter as JSON
--          {type, priority, attempts, since, until, search: a list of texts}, rows ('messages', 'ids' or 'failures'),
--          matches to skip, maximum number of rows
-- Returns  {rows, next cursor or '' at the end, number of matches, number of entries read}. A row is {id, data, record,
--          sid}, {id, sid}, or {id, type, last error, failed at in seconds}. Rows of messages without a filter: every
--          entry matches.
--
-- Atomic, so that a message that changes its state is in the slice once. reading.lua describes the limits of a slice.

local state, order, cursor, filter, wanted, skip, limit = unpack(ARGV, 2)
filter, skip, limit = cjson.decode(filter), tonumber(skip), tonumber(limit)
filter.search = lower_texts(filter.search)
local is_filtered = wanted ~= 'messages' or next(filter) ~= nil
local next_block = blocks(state, order, cursor, filter)
local rows, matched, ended = {}, 0, ''

-- Returns the row of a match; nil if its entry was deleted.
local function row_of(item)
  if wanted == 'ids' then
    return { item.id, item.sid }
  elseif wanted == 'failures' then
    local record = item.record
    spent = spent + 1 -- returning four texts costs as much again as reading an entry
    return { item.id, record.type, record.last_error or '', tostring(record.failed_at or record.created_at) }
  elseif read_item(item, state, true) then
    spent, shown_bytes = spent + RETURN_COST, shown_bytes + #item.data
    return { item.id, item.data, cjson.encode(item.record), item.sid }
  end
end

-- Adds the rows of a block; returns the item at which the page is full.
local function add_rows(block)
  if is_filtered or matched + #block > skip then
    read_records(block)
  end
  for _, item in ipairs(block) do
    if not is_filtered or is_match(item, filter, state) then
      matched = matched + 1
      local row = matched > skip and row_of(item)
      rows[#rows + 1] = row or nil
      if #rows == limit or row and is_full() then
        return item
      end
    end
  end
end

repeat
  local block
  block, ended = next_block()
  local last = add_rows(block)
  if last and (last ~= block[#block] or ended ~= '') then
    ended = cursor_at(last)
  end
until last or ended == '' or is_budget_spent()
return { rows, ended, matched, read_entries }
