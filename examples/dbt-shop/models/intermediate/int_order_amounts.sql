select order_id, sum(amount) as amount, count(*) as payments from {{ ref('stg_payments') }} group by order_id
