#!lua flags=allow-oom
-- Reads a slice of the messages in a place, in an order that their entries have.
--
-- ARGV     place, priority levels, order ('newest' or 'oldest' entry first, by deadline where messages are held; in
--          main also 'highest' or 'lowest' priority first, of each the newest), where an earlier slice ended ('' to
--          begin), filter as JSON {type, priority, attempts, from, until, search}, matches to skip, most rows
-- Returns  {rows of {id, data, record, sid, stream}, where to go on or '' at the end, entries that matched, entries
--          looked at}; without a filter every entry matches
--
-- Atomic, so that a message which moves meanwhile is in the slice once. See reading.lua for what bounds a slice.

local place, levels, order, cursor, filter, skip, limit = unpack(ARGV)
filter, skip, limit = cjson.decode(filter), tonumber(skip), tonumber(limit)
filter.search = filter.search and string.lower(filter.search)
local is_filtered = next(filter) ~= nil
local next_block = blocks(place, tonumber(levels), order, cursor, filter)
local rows, matched, looked, ended = {}, 0, 0, ''

-- Shows what a block has; returns the item at which the page is full.
local function show(block)
  if is_filtered or matched + #block > skip then
    read_records(block)
  end
  for _, item in ipairs(block) do
    looked = looked + 1
    if not is_filtered or is_wanted(item, filter, place) then
      matched = matched + 1
      local row = matched > skip and (item.row or row_of(item, place))
      if row then
        rows[#rows + 1] = shown(row)
      end
      if #rows == limit or row and is_full() then
        return item
      end
    end
  end
end

repeat
  local block
  block, ended = next_block()
  local last = show(block)
  if last and (last ~= block[#block] or ended ~= '') then
    ended = cursor_at(last)
  end
until last or ended == '' or is_spent()
return { rows, ended, matched, looked }
